"""The requests that come to one pool in a simulation: calm hours, ramps, bursts and silence, drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.int64]

SILENCE = 0.0


def rates(rng: np.random.Generator, num_steps: int, most: float, service_s: float) -> npt.NDArray[np.float64]:
    """Return the mean number of requests that arrive in each second.

    most: the requests that run at once at the highest level; a burst may exceed this level by a third. service_s:
    seconds that a request takes on average.
    """
    parts: list[npt.NDArray[np.float64]] = []
    level, length = most * rng.uniform(0.1, 0.5), 0
    while length < num_steps:
        part, level = _part(rng, level, most)
        parts.append(part)
        length += len(part)
    return np.concatenate(parts)[:num_steps] / service_s


def _part(rng: np.random.Generator, level: float, most: float) -> tuple[npt.NDArray[np.float64], float]:
    """Return the next section of the load, in requests that run at once, and its level at the end."""
    match rng.choice(["calm", "ramp", "burst", "silence"], p=[0.35, 0.35, 0.2, 0.1]):
        case "calm":
            seconds = int(rng.integers(600, 3600))
            wave = 1 + rng.uniform(0, 0.2) * np.sin(np.arange(seconds) * 2 * np.pi / rng.uniform(300, 1800))
            return level * wave, level
        case "ramp":
            seconds, end = int(rng.integers(300, 2400)), most * rng.uniform(0.05, 0.9)
            return np.linspace(level, end, seconds), end
        case "burst":
            seconds, high = int(rng.integers(60, 900)), min(max(level, 0.05 * most) * rng.uniform(1.5, 6), 1.33 * most)
            return np.full(seconds, high), level
        case _:
            return np.full(int(rng.integers(600, 3600)), SILENCE), most * rng.uniform(0.05, 0.5)


def arrivals(rng: np.random.Generator, per_second: npt.NDArray[np.float64], service_s: float) -> Iterator[list[int]]:
    """Yield, for each second, the durations in seconds of the requests that arrive in it."""
    numbers = rng.poisson(per_second)
    takes = rng.geometric(1 / service_s, int(numbers.sum())).tolist()
    start = 0
    for number in numbers.tolist():
        yield takes[start : start + number]
        start += number
