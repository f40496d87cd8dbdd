"""What tests of the GPU's path compute without a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interpreter import multiply_exactly, overflow_unchecked, prepare_once

prepare_once()
multiply_exactly()


@pytest.fixture(autouse=True, scope="package")
def _overflow_unchecked() -> Iterator[None]:
    """The same process may test kernels before and after, where overflow is an error."""
    with overflow_unchecked():
        yield
