"""The pool of threads gives the same results as one thread, even if helpers are late or units wait for others.

Also checks that the program which compares the bits of processors follows the sources.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kernels.cpu.build import BuildError, compiler
from tests.kernels.cpu.sanitized import build_jobs, check_bits


@pytest.fixture(autouse=True)
def has_compiler() -> None:
    try:
        compiler()
    except BuildError as error:
        pytest.skip(str(error))


def test_jobs_have_the_results_of_one_thread(tmp_path: Path, full: bool) -> None:
    num_jobs = 200_000 if full else 4_000
    program = build_jobs(tmp_path / "jobs")
    done = subprocess.run([str(program), str(num_jobs)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{num_jobs} jobs\n"), done.stderr


def test_the_program_that_prints_the_bits_of_a_processor_compiles(tmp_path: Path) -> None:
    check_bits(tmp_path)
