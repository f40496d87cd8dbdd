"""Running one suite against a site: its environment, its command, its results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from tests.conformance.environments import node_environment, python_environment
from tests.conformance.results import Result, read_junit
from tests.conformance.site import Site
from tests.conformance.suites import CLIENTS, REPOSITORY, Suite

OF_THE_SHELL = ("PATH", "HOME", "LANG", "TMPDIR", "SSL_CERT_FILE", "PIP_CERT", "OMP_NUM_THREADS")
BARE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""Environment variables that keep environments which borrow our packages from loading our tests' pytest plugins."""


def installed(suite: Suite, build: Path) -> list[str]:
    """Install a suite's environment below `build`, and return the command that runs the suite.

    Raises SuiteUnavailable: when the environment can't be made.
    """
    if suite.runtime == "node":
        folder = build / "node"
        node = node_environment(folder)
        scripts = [str(folder / Path(script).name) for script in suite.scripts]
        return [str(node), "--test", "--test-reporter=junit", "--test-reporter-destination={junit}", *scripts]
    if suite.runtime == "repository":
        return [sys.executable, "-m", "pytest", "-o", "junit_family=xunit1", "--junitxml={junit}", *suite.scripts]
    if suite.commands:
        node_environment(build / "node")
    return pytest_command(python_environment(suite, build / suite.name), suite)


def pytest_command(python: Path, suite: Suite) -> list[str]:
    """Return the command that runs a suite's scripts as a project of their own, without this repository's options
    and fixtures."""
    options = [f"--rootdir={CLIENTS}", f"--confcutdir={CLIENTS}", "-c", os.devnull, "-p", "no:cacheprovider"]
    options += ["--import-mode=importlib", "-q", "-o", "junit_family=xunit1", "--junitxml={junit}"]
    return [str(python), "-m", "pytest", *options, *(str(path) for path in _files(suite))]


def _files(suite: Suite) -> list[Path]:
    files: list[Path] = []
    for path in (CLIENTS / script for script in suite.scripts):
        files += sorted(path.glob("*.py")) if path.is_dir() else [path]
    return files


def run_command(suite: Suite, command: list[str], site: Site, folder: Path) -> Result:
    """Run a suite's command and return its result.

    command: with {junit} for the path of the results. Its output is stored beside the results.
    """
    folder.mkdir(parents=True, exist_ok=True)
    junit = folder / f"{suite.name}.xml"
    junit.unlink(missing_ok=True)
    inherited = {name: os.environ[name] for name in OF_THE_SHELL if name in os.environ}
    commands = {"CONFORMANCE_COMMANDS": str(folder.parent / "node" / "node_modules" / ".bin")} if suite.commands else {}
    with (folder / f"{suite.name}.log").open("w") as log:
        process = subprocess.Popen(
            [part.replace("{junit}", str(junit)) for part in command],
            cwd=REPOSITORY if suite.runtime == "repository" else folder,
            env=inherited | site.environ(suite.model) | (BARE if suite.runtime == "python" else {}) | commands,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            code = process.wait(suite.timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return Result(suite.name, suite.versions(), not_run=f"it took longer than {suite.timeout_s:.0f} s")
    return _result(suite, code, junit)


def _result(suite: Suite, code: int, junit: Path) -> Result:
    """Return the result of a suite, which counts only if the file of results and the exit code agree."""
    wrong = ""
    try:
        cases = read_junit(junit)
    except (FileNotFoundError, ElementTree.ParseError):
        cases, wrong = [], "without results"
    else:
        if not cases:
            wrong = "without a single case"
        elif code != 0 and all(case.outcome != "failed" for case in cases):
            wrong = "though no case failed"
    if wrong:
        return Result(suite.name, suite.versions(), not_run=f"it ended with exit code {code} {wrong}")
    return Result(suite.name, suite.versions(), cases)
