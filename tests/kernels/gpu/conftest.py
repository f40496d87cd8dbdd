"""A seed for every test, and at the end how many cases the kernels passed: a run of the whole folder with few fails."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.interpreter import multiply_exactly, prepare_once
from tests.kernels.gpu.compare import DEVICE

HERE = Path(__file__).parent
MIN_CASES = 300

prepare_once()
multiply_exactly()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _num_passed(config: pytest.Config) -> int:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    assert isinstance(reporter, pytest.TerminalReporter)
    root = config.rootpath
    return sum((root / report.location[0]).parent == HERE for report in reporter.stats.get("passed", []))


def _runs_everything(session: pytest.Session) -> bool:
    """Whether no file of this folder was left out, and no case of them deselected."""
    option = session.config.option
    chosen = (
        option.collectonly or option.keyword or option.markexpr or option.deselect or "::" in str(option.file_or_dir)
    )
    return not chosen and set(HERE.glob("test_*.py")) <= {item.path for item in session.items}


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not session.config.pluginmanager.has_plugin("terminalreporter"):
        return  # one of several processes, which sees its own cases alone
    too_few = _runs_everything(session) and _num_passed(session.config) < MIN_CASES
    if session.exitstatus == pytest.ExitCode.OK and too_few:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    where = "on a GPU" if DEVICE.type == "cuda" else "in Triton's interpreter"
    terminalreporter.write_line(
        f"{_num_passed(config)} cases of Triton kernels passed {where}; of a whole run at least {MIN_CASES} must"
    )
