"""Fixtures for tests of inspections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.hostile.forks import Forks


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """Give a runner of confined processes that forks them, in a hundredth of the time that Python takes to start."""
    forks = Forks()
    yield forks
    forks.close()


@pytest.fixture
def into(tmp_path: Path) -> Path:
    """Give an empty folder for an inspection to fill."""
    path = tmp_path / "into"
    path.mkdir()
    return path
