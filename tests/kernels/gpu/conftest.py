"""Seeds the random numbers of every test of the GPU's kernels."""

from __future__ import annotations

import pytest
import torch

from tests.interpreter import multiply_exactly, prepare_once

prepare_once()
multiply_exactly()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
