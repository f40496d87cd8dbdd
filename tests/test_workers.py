"""Workers run each group of tests in one process, tell all of its outcomes, and cannot lose a test by dying."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tests
from tests.patience import PATIENCE_S

CONFTEST = """
import pytest
from tests.workers import Workers

def pytest_configure(config):
    config.pluginmanager.register(Workers(config, {num}, lambda item: item.path.name))

@pytest.fixture(scope="session", autouse=True)
def noted():
    yield
    with open("ended", "a") as file:
        file.write("x")
"""
NOTES = """
import os

def note(name):
    with open("ran", "a") as file:
        file.write(f"{name} {os.getpid()} {os.environ['TEST_WORKER']}\\n")
"""
MIXED = """
import warnings
import pytest
from notes import note

def test_passes(tmp_path):
    note("mixed")
    assert tmp_path.is_dir()

def test_fails():
    note("mixed")
    print("said before it failed")
    assert 1 == 2

@pytest.mark.skip(reason="not here")
def test_is_skipped():
    pass

def test_warns():
    note("mixed")
    warnings.warn("mind this")
"""
OTHERS = """
import pytest
from notes import note

@pytest.mark.parametrize("number", range(3))
def test_each(number):
    note(__name__)
"""
DEADLY = """
import os
import signal
from notes import note

def test_before():
    note("deadly")

def test_dies():
    os.kill(os.getpid(), signal.SIGKILL)

def test_after():
    note("deadly")
"""

BUSY = """
import subprocess
import sys
import time

SPIN = "import time\\nwhile time.process_time() < 0.3: pass"

def test_computes():
    exec(SPIN.replace("0.3", f"{time.process_time() + 0.3}"))

def test_has_others_compute():
    subprocess.run([sys.executable, "-Sc", SPIN], check=True)
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs test files, by name, with a number of workers."""

    def run(num: int, *flags: str, **files: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "conftest.py").write_text(CONFTEST.format(num=num))
        (tmp_path / "notes.py").write_text(NOTES)
        for name, text in files.items():
            (tmp_path / f"test_{name}.py").write_text(text)
        environ = {"PYTHONPATH": str(Path(tests.__file__).parents[1]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), *flags]
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=PATIENCE_S)

    return run


def ran(folder: Path) -> list[list[str]]:
    """Return the file, the process and the worker of each test that ran."""
    return [line.split() for line in (folder / "ran").read_text().splitlines()]


def test_outcomes_are_those_of_one_process(run: Run, tmp_path: Path) -> None:
    done = run(2, mixed=MIXED, one=OTHERS, two=OTHERS)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"1 failed, 8 passed, 1 skipped, 1 warning", done.stdout)
    assert "said before it failed" in done.stdout and "assert 1 == 2" in done.stdout and "mind this" in done.stdout
    assert (tmp_path / "ended").read_text() == "xx", "each worker ends what its tests shared"


def test_a_file_is_run_by_one_worker_and_several_run_beside_each_other(run: Run, tmp_path: Path) -> None:
    assert run(3, one=OTHERS, two=OTHERS, three=OTHERS).returncode == 0
    workers = {name: {process for file, process, _ in ran(tmp_path) if file == name} for name, *_ in ran(tmp_path)}
    assert len(workers) == 3 and all(len(each) == 1 for each in workers.values())
    assert {name for *_, name in ran(tmp_path)} <= {"worker0", "worker1", "worker2"}


def test_a_run_ends_with_the_files_that_took_most_processor_time(run: Run) -> None:
    """Processes of tests count as well, and a file that took next to nothing comes last."""
    done = run(2, busy=BUSY, one=OTHERS)
    shown = dict(reversed(found) for found in re.findall(r"^([\d.]+)s (test_\w+\.py)$", done.stdout, re.MULTILINE))
    assert [*shown] == ["test_busy.py", "test_one.py"], done.stdout + done.stderr
    assert float(shown["test_busy.py"]) >= 0.6 > float(shown["test_one.py"])
    assert re.search(r"^[\d.]+s in all; [\d.]+s in all without work at the end$", done.stdout, re.MULTILINE)


def test_a_worker_that_dies_fails_its_test_and_another_runs_the_rest(run: Run, tmp_path: Path) -> None:
    done = run(1, deadly=DEADLY, one=OTHERS)
    assert done.returncode == 1
    assert re.search(r"1 failed, 5 passed", done.stdout), done.stdout + done.stderr
    assert "worker0 ended with -9 while it ran this test" in done.stdout
    assert [worker for file, _, worker in ran(tmp_path) if file == "deadly"] == ["worker0", "worker1"]


def test_the_first_failure_ends_a_run_that_asks_for_that(run: Run, tmp_path: Path) -> None:
    done = run(1, "-x", mixed=MIXED, one=OTHERS)
    assert "stopping after 1 failures" in done.stdout
    assert [file for file, *_ in ran(tmp_path)] == ["mixed", "mixed"]


def test_a_worker_that_cannot_begin_fails_the_run(run: Run, tmp_path: Path) -> None:
    done = run(1, "-p", "no:tmpdir", one=OTHERS)
    assert done.returncode == pytest.ExitCode.INTERNAL_ERROR
    assert "worker0 ended with 1" in done.stdout + done.stderr
