"""Requests that come at a steady rate whatever their outcomes, and the outcomes over time."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections import Counter

import httpx
import msgspec

from tests.faults.pools.world import World
from tests.installation.waiting import wait_until
from tests.patience import PATIENCE_S

MAX_IN_FLIGHT = 400
"""The most requests at one time, so that a fault does not let this process grow without end."""


ANSWER_S = 60.0
"""Seconds after which a request without answer or refusal has the outcome "no answer"."""


class Event(msgspec.Struct, frozen=True):
    """The end of one request, with its outcome."""

    at_s: float
    """The time of the end, by the monotonic clock."""
    took_s: float
    """The seconds since the request began."""
    outcome: str
    """The outcome in words."""


class Traffic:
    """A sender of requests in a thread of its own, since a database ends with the thread that started it.

    rate: requests a second, evenly drawn.
    wrong: a line for each answer that was another model's.
    """

    def __init__(self, world: World, rate: float, seed: int) -> None:
        self.events: list[Event] = []
        self.wrong: list[str] = []
        self._world = world
        self._rate = rate
        self._rng = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Send no more, and return once everything that was sent has ended."""
        self._stop.set()
        self._thread.join()

    def more_answers(self, count: int, *, patience_s: float = PATIENCE_S) -> None:
        """Wait until `count` more requests were answered.

        patience_s: the most seconds to wait.

        Raises AssertionError: when that takes too long.
        """
        target = self.num_answered + count
        wait_until(lambda: self.num_answered >= target, lambda: f"no answers: {self.outcomes()}", patience_s=patience_s)

    @property
    def num_answered(self) -> int:
        return sum(event.outcome == "answered" for event in list(self.events))

    def outcomes(self) -> Counter[str]:
        return Counter(event.outcome for event in list(self.events))

    def longest_silence_s(self) -> float:
        """Return the longest time between two answers in seconds."""
        times = sorted(event.at_s for event in self.events if event.outcome == "answered")
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)

    def first_answer_after(self, at_s: float) -> float:
        """Return the seconds from this moment to the next answer."""
        return min(event.at_s for event in self.events if event.outcome == "answered" and event.at_s >= at_s) - at_s

    async def _run(self) -> None:
        limits = httpx.Limits(max_connections=MAX_IN_FLIGHT, max_keepalive_connections=100)
        async with httpx.AsyncClient(timeout=ANSWER_S, trust_env=False, limits=limits) as http:
            running: set[asyncio.Task[None]] = set()
            while not self._stop.is_set():
                await asyncio.sleep(self._rng.expovariate(self._rate))
                if len(running) < MAX_IN_FLIGHT:
                    task = asyncio.create_task(self._send_request(http))
                    running.add(task)
                    task.add_done_callback(running.discard)
            await asyncio.gather(*running)

    async def _send_request(self, http: httpx.AsyncClient) -> None:
        asked, gateway = self._world.random_request(self._rng), self._rng.choice(self._world.gateways)
        started_s = time.monotonic()
        try:
            outcome = await self._world.ask(http, asked, gateway)
        except AssertionError as error:
            outcome = "WRONG"
            self.wrong.append(str(error)[:300])
        now_s = time.monotonic()
        self.events.append(Event(now_s, now_s - started_s, outcome))
