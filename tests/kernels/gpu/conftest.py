"""A seed for every test, and at the end how many cases the kernels passed."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.gpu.compare import DEVICE

FOLDER = "tests/kernels/gpu/"


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed = [report for report in terminalreporter.stats.get("passed", []) if report.nodeid.startswith(FOLDER)]
    where = "on a GPU" if DEVICE.type == "cuda" else "in Triton's interpreter"
    terminalreporter.write_line(f"{len(passed)} cases of Triton kernels passed {where}")
