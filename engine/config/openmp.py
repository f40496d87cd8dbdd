"""The way in which the CPU threads of PyTorch wait for each other.

This module knows nothing of models or steps, and never imports torch.

PyTorch divides an operation among OpenMP's threads, and all of them wait at the operation's end for the last one.
By default GNU's OpenMP, libgomp, spins there for milliseconds. Beside another busy process that is ruinous: a thread
that spins keeps the processor that the last thread needs, until the kernel takes it away, a hundred times in each step.

OpenMP reads the environment once, when torch is loaded, so an entry point that computes with torch on a CPU calls one
of these functions first. An OMP_WAIT_POLICY or a GOMP_SPINCOUNT of the user's own is kept.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

WAIT_POLICY = "OMP_WAIT_POLICY"
SPIN_COUNT = "GOMP_SPINCOUNT"

BRIEF_SPIN = "5000"
"""Turns of a waiting thread before it sleeps, about a tenth of a millisecond: longer than the pause between two
operations of a step, so that threads need not be woken for each, and far shorter than the time for which a kernel gives
a processor away. `engine/LOG.md` has others."""


def spin_briefly(environ: MutableMapping[str, str] = os.environ) -> None:
    """Make OpenMP's threads stay awake between the operations of one step, and sleep soon after.

    The engine calls this function: its operations are short and many, and it gives up threads that have to wait.

    environ: the environment that is changed.
    """
    if WAIT_POLICY not in environ:
        environ.setdefault(SPIN_COUNT, BRIEF_SPIN)


def sleep_while_waiting(environ: MutableMapping[str, str] = os.environ) -> None:
    """Make OpenMP's threads sleep whenever they wait. Programs with long operations call this function.

    environ: the environment that is changed.
    """
    if SPIN_COUNT not in environ:
        environ.setdefault(WAIT_POLICY, "PASSIVE")
