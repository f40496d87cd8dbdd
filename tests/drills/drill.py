"""A drill, its outcome, and how a fault under load is measured."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from tests.drills.ground import Ground, running_ground
from tests.drills.traffic import Traffic

SHARE = 0.2
"""The share of the capacity that traffic takes: the machine may be shared with others."""

NUM_BEFORE, NUM_AFTER = 20, 40
"""The number of answers to wait for before a fault, and after it."""


class Outcome(msgspec.Struct, kw_only=True):
    """The figures of a drill that held."""

    outcomes: dict[str, int] = {}
    """The number of requests by their outcome."""
    silence_s: float = 0.0
    """The longest time without an answer, in seconds."""
    back_after_s: float = 0.0
    """Seconds from the end of the fault to the next answer."""
    remark: str = ""
    """Further words for the table."""


def print_progress(text: str) -> None:
    """Print the progress of a long drill to standard error, apart from the table."""
    print(text, file=sys.stderr, flush=True)


class CannotRun(Exception):
    """The error for a drill that this machine cannot run; the message names what it lacks."""


class Drill(msgspec.Struct, frozen=True):
    """A drill: a promise of the product, and the run that tries to break it."""

    name: str
    promise: str
    run: Callable[[Path, random.Random], Outcome]
    """Run the drill in an empty folder that every user can pass through.
    Raises AssertionError: when a promise is broken.
    """
    small: Callable[[Path, random.Random], Outcome] | None = None
    """Run the drill in a smaller size; None: there is none."""


Fault = Callable[[Ground, Traffic, random.Random], str | None]
"""A function that causes a fault for an installation under load, and returns a remark once the fault is over."""


def under_load(fault: Fault, *, allowed: frozenset[str] = frozenset(), **grounds: Any) -> Callable[..., Outcome]:
    """Return a function that runs a drill: traffic, a fault, answers again, and a check that everything adds up.

    allowed: outcomes that may come beside answers and refusals with a status of 503.
    grounds: arguments of `running_ground`.
    """

    def run(folder: Path, rng: random.Random) -> Outcome:
        with running_ground(folder, **grounds) as ground:
            return measure(ground, fault, rng, allowed)

    return run


def measure(ground: Ground, fault: Fault, rng: random.Random, allowed: frozenset[str] = frozenset()) -> Outcome:
    """Let a fault happen to an installation under load; return the outcome.

    allowed: the kinds of errors that clients may get.

    Raises AssertionError: when an answer is wrong, lost or doubled.
    """
    asyncio.run(ground.warm_up())
    with ExitStack() as stack:
        traffic = stack.enter_context(ground.traffic(SHARE, rng.randrange(1 << 30)))
        traffic.more_answers(NUM_BEFORE)
        remark = fault(ground, traffic, rng)
        over_s = time.monotonic()
        traffic.more_answers(NUM_AFTER)
    ground.check()
    assert traffic.wrong == [], traffic.wrong
    found = traffic.outcomes()
    surprises = {name for name in found if name != "answered" and name not in allowed and not name.startswith("503 ")}
    assert not surprises, dict(found)
    ground.settle()
    return Outcome(
        outcomes=dict(found),
        silence_s=traffic.longest_silence_s(),
        back_after_s=traffic.first_answer_after(over_s),
        remark=remark or "",
    )
