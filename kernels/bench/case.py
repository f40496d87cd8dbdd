"""One measured case of the kernels' benchmark."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from kernels.bench.floors import Work


class Case(NamedTuple):
    """One case of the benchmark."""

    name: str
    work: Work
    """The bytes and operations of run."""
    run: Callable[[], None]
    """The timed work."""
    error: Callable[[], float]
    """The function that returns the error of run's result, relative to the reference."""


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """Return |ours - theirs| / |theirs| of the whole tensors; infinity where anything is no number."""
    error = float((ours.double() - theirs.double()).norm() / theirs.double().norm())
    return error if error == error else float("inf")
