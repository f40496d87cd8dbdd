"""Kernels compile for an H100 on a machine without one, at the targets' shapes, and keep everything in registers."""

from __future__ import annotations

import os
import subprocess
import sys

HEADER = "| kernel | warps | stages | registers | stack bytes | shared KiB |"
H100_SHARED_KIB = 227


def compiled(*arguments: str) -> list[list[str]]:
    """The rows of the table; in a process of its own, since kernels that are interpreted here can't be compiled."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "kernels.compile", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500)
    assert done.returncode == 0, done.stderr
    header, _, *lines = done.stdout.splitlines()
    assert header == HEADER
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_kernels_of_the_8b_shape_do_not_spill(full: bool) -> None:
    rows = compiled() if full else compiled("8B, rank 16", "--only", "decode shrink q", "expand q", "attention")
    names = {row[0].split(": ")[1] for row in rows}
    assert {"decode shrink q, k, v", "prefill expand q, k, v", "decode attention, split", "prefill attention"} <= names
    for name, _, _, registers, stack_bytes, shared_kib in rows:
        assert int(registers) <= 255, name
        assert int(stack_bytes) == 0, name
        assert int(shared_kib) <= H100_SHARED_KIB, name
