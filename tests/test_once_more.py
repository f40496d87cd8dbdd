"""A test that failed beside others and passes alone is reported as a flake; one that fails again fails the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tests
from tests.once_more import FLAKES, LAST_FAILED, MAX_TESTS
from tests.patience import PATIENCE_S

CASES = """
def test_fine():
    pass

def test_broken():
    assert False
"""


@pytest.mark.parametrize(
    ("failed", "code"),
    [
        (["test_fine"], 0),
        (["test_broken"], 1),
        (["test_fine", "test_broken"], 1),
        ([], 1),
        (["test_fine"] * (MAX_TESTS + 1), 1),
    ],
)
def test_a_test_that_fails_alone_fails_the_run(tmp_path: Path, failed: list[str], code: int) -> None:
    (tmp_path / "test_cases.py").write_text(CASES)
    (tmp_path / LAST_FAILED).parent.mkdir(parents=True)
    known = {f"test_cases.py::{name}{' ' * number}": True for number, name in enumerate(failed)}
    (tmp_path / LAST_FAILED).write_text(json.dumps(known))
    environ = os.environ | {
        "PYTHONPATH": str(Path(tests.__file__).parents[1]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # plugins take longer to load than the cases to run
    }
    command = [sys.executable, "-m", "tests.once_more"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == code, done.stdout + done.stderr
    flakes = ["test_cases.py::test_fine"] if "test_fine" in failed and len(failed) <= MAX_TESTS else []
    told = [line.removeprefix("FLAKE: ") for line in done.stdout.splitlines() if line.startswith("FLAKE: ")]
    assert told == flakes
    noted = (tmp_path / FLAKES).read_text().splitlines() if (tmp_path / FLAKES).exists() else []
    assert [line.split()[1:] for line in noted] == [["unknown", flake] for flake in flakes]
