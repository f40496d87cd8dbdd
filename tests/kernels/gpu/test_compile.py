"""Kernels compile for an H100 on a machine without one, at the targets' shapes, and spill no registers unless
spilling was measured to be faster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import triton

from kernels.targets import TARGETS, launches

HEADER = "| kernel | warps | stages | registers | stack bytes | shared KiB |"
H100_SHARED_KIB = 227
FEW_BYTES = 8 if triton.__version__.startswith("3.6.") else 0  # of stack, for two registers of one kernel
SPILLED_BYTES = (
    512  # by expands and prefill attention of the model whose sizes of blocks were measured to be the fastest
)
# What CI compiles, as regular expressions of names: every kernel once in fp16, with a window and norms of heads; the
# two that need most registers in bf16, without; attention over wide heads with a soft cap. Both phases multiply by
# quantized weights with the same code over tiles of other sizes: each kind of weights is compiled for one phase.
ONCE = (
    "q, k, v|norm|rope|attention|silu|gelu|sample|penalties|float8 .*(inputs|splits)$"
    "|decode (float8 rows|float8 blocks by wide rows|int4, act-order)$"
    "|prefill (float8 blocks|float8 rows by wide rows|int4)$"
)
IN_CI = {
    "demo": "prefill shrink q, k, v|prefill attention$",
    "0.6B, fp16": ONCE,
    "Gemma 2 9B": "attention(, split|, combine)?$",
    "30B-A3B, rank 16": "experts gate, up, biases",
}


def compiled(targets: list[str], labels: list[str], cache: Path) -> list[list[str]]:
    """Return rows of the table that `kernels.compile` prints for the kernels with these names.

    The command runs in a process of its own, since kernels that are interpreted here can't be compiled.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "kernels.compile", *targets, "--only", *(f"^{re.escape(label)}$" for label in labels)],
        capture_output=True,
        text=True,
        env={**environment, "TRITON_CACHE_DIR": str(cache)},
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    compiler, _, header, _, *lines = done.stdout.splitlines()
    assert compiler.startswith("compiled by Triton 3.")
    assert header == HEADER
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_kernel_compiles_and_does_not_spill(full: bool, tmp_path: Path) -> None:
    chosen = {target.name: "" for target in TARGETS} if full else IN_CI
    labels = [
        f"{target.name}: {name}"
        for target in TARGETS
        for name, _ in launches(target)
        if target.name in chosen and re.search(chosen[target.name], name)
    ]
    rows = compiled(list(chosen), labels, tmp_path)
    assert [row[0] for row in rows] == labels
    for name, _, _, registers, stack_bytes, shared_kib in rows:
        assert int(registers) <= 255, name
        measured = name.startswith("8B") and ("expand" in name or "prefill attention" in name)
        assert int(stack_bytes) <= (SPILLED_BYTES if measured else FEW_BYTES), name
        assert int(shared_kib) <= H100_SHARED_KIB, name
