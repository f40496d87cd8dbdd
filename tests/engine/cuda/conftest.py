"""Fixtures for tests of the GPU's path on machines without a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interpreter import multiply_exactly, overflow_unchecked, prepare_once

prepare_once()
multiply_exactly()


@pytest.fixture(autouse=True, scope="package")
def _overflow_unchecked() -> Iterator[None]:
    """Leave overflow unchecked, and restore the check afterwards for kernel tests in the same process."""
    with overflow_unchecked():
        yield
