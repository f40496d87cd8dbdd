"""Counts the cases of the Triton kernels that passed: a run of all tests, or of their whole folder, fails with too few.

A plugin of the process that a run was started in, which gets the results of all others. Knows nothing of kernels.
"""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "gpu"
MIN_CASES = 300


class CaseCount:
    """The count of passed cases of kernels, and whether all of them were to run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._prefix = FOLDER.relative_to(config.rootpath).as_posix() + "/"
        self._passed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._passed += report.when == "call" and report.passed and report.nodeid.startswith(self._prefix)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        too_few = self._runs_everything() and self._passed < MIN_CASES
        if session.exitstatus == pytest.ExitCode.OK and too_few:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._runs_everything():
            terminalreporter.write_line(
                f"{self._passed} cases of Triton kernels passed; of a whole run at least {MIN_CASES} must"
            )

    def _runs_everything(self) -> bool:
        """Tell whether the run includes the whole folder, without a selection of cases."""
        option = self._config.option
        if option.collectonly or option.keyword or option.markexpr or option.deselect or option.ignore:
            return False
        asked_for = [self._config.invocation_params.dir / argument for argument in self._config.args]
        return any(FOLDER.is_relative_to(path) for path in asked_for)
