"""The time that a test waits for an event, such as a process that starts or a row that is written.

`PATIENCE_S` only ends a test that would hang: continuous integration runs many tests on few processors, where a start
of three seconds may take a minute. A promise about time has a limit of its own, and is measured by `least`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

PATIENCE_S = 300.0
TRIES = 6


async def least(measure: Callable[[], Awaitable[float]], limit_s: float) -> float:
    """Return the first measured time below the limit, or the least of a few, since other work only adds to a time.

    measure: measures once, in seconds.
    """
    least_s = float("inf")
    for _ in range(TRIES):
        least_s = min(least_s, await measure())
        if least_s < limit_s:
            break
    return least_s
