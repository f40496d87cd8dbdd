"""What tests of the GPU's path compute without a GPU."""

from __future__ import annotations

from tests.interpreter import let_overflow, multiply_exactly, prepare_once

prepare_once()
let_overflow()
multiply_exactly()
