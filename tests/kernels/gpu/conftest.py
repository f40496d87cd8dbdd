"""A seed and one thread for every test, and at the end how many cases the kernels passed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.kernels.gpu.compare import DEVICE

FOLDER = "tests/kernels/gpu/"


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    """References are many small operations, for which threads wait longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed = [report for report in terminalreporter.stats.get("passed", []) if report.nodeid.startswith(FOLDER)]
    where = "on a GPU" if DEVICE.type == "cuda" else "in Triton's interpreter"
    terminalreporter.write_line(f"{len(passed)} cases of Triton kernels passed {where}")
