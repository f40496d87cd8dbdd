"""A side environment for each suite, below build/: made once for the versions it pins, and made again when they
change."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.conformance.suites import NODE, Suite

INSTALL_TIMEOUT_S = 1800.0


class SuiteUnavailable(Exception):
    """The error for a suite that cannot be installed here; the message has the reason, in one line."""


def python_environment(suite: Suite, folder: Path) -> Path:
    """Return the interpreter of a virtual environment with what the suite pins."""
    python = folder / "bin" / "python"
    wanted = json.dumps([sys.version, suite.packages, suite.borrows])
    if _is_made(folder, wanted):
        return python
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)], folder.parent)
    _run([str(python), "-m", "pip", "install", "--quiet", "--no-compile", *suite.packages], folder)
    if suite.borrows:
        # Looked into after its own packages, so it only adds what is not there.
        (next(folder.glob("lib/python*/site-packages")) / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    _note_made(folder, wanted)
    return python


def node_environment(folder: Path) -> Path:
    """Return the `node` of a folder with the packages that clients/node pins and its tests, beside which modules are
    looked up."""
    if shutil.which("npm") is None:
        raise SuiteUnavailable("npm is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    for source in NODE.iterdir():
        shutil.copy(source, folder)
    wanted = (NODE / "package-lock.json").read_text()
    if not _is_made(folder, wanted):
        _run(["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"], folder)
        _note_made(folder, wanted)
    return folder / "node_modules" / ".bin" / "node"


def _is_made(folder: Path, wanted: str) -> bool:
    made = folder / ".made-for"
    return made.exists() and made.read_text() == wanted


def _note_made(folder: Path, wanted: str) -> None:
    (folder / ".made-for").write_text(wanted)


def _run(command: list[str], cwd: Path) -> None:
    """Run a command.

    Raises SuiteUnavailable: when the command fails, with the last line that the command wrote.
    """
    cwd.mkdir(parents=True, exist_ok=True)
    try:
        ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise SuiteUnavailable(f"{command[0]} took longer than {INSTALL_TIMEOUT_S:.0f} s") from None
    if ended.returncode != 0:
        said = (ended.stderr or ended.stdout).strip().splitlines() or ["it said nothing"]
        raise SuiteUnavailable(f"{' '.join(command[:4])}: {said[-1]}")
