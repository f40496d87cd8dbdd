"""Threads in which projects take turns: each has one place.

A project with much work, such as many long prompts, so keeps no other project waiting. Knows nothing of the work.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from gateway.domain.errors import LimitReached

T = TypeVar("T")

MAX_WAITING = 64
"""The most jobs of one project, including the one that runs, unless the threads have another bound."""


class ProjectThreads:
    """The threads of one gateway process for one kind of work, shared fairly by projects.

    At most one job of each project is with the threads, which serve in the order of arrival, so projects take turns; a
    project's further jobs wait here.
    """

    def __init__(
        self, kind: str, what: str, num_threads: int | None = None, *, max_waiting: int | None = MAX_WAITING
    ) -> None:
        """Prepare the threads.

        kind: the name of the threads. what: the name of what a project sends too much of, for the refusal.
        max_waiting: the most jobs of one project, including the one that runs; None: no bound, for work that is bounded
        elsewhere.
        """
        self._what = what
        self._max_waiting = max_waiting
        self._threads = ThreadPoolExecutor(num_threads or os.cpu_count() or 1, kind)
        self._places: dict[str, asyncio.Lock] = {}
        self._num_jobs: Counter[str] = Counter()

    async def run(self, project_id: str, work: Callable[..., T], *args: Any) -> T:
        """Return the result of `work`, called in a thread when it is the project's turn.

        Raises LimitReached: when as many jobs of the project wait already as may.
        """
        if self._max_waiting is not None and self._num_jobs[project_id] >= self._max_waiting:
            raise LimitReached(
                f"This project has sent too many {self._what} at once. Send fewer at a time.", retry_after_s=1.0
            )
        place = self._places.setdefault(project_id, asyncio.Lock())
        self._num_jobs[project_id] += 1
        try:
            await place.acquire()
        except BaseException:
            self._end_job(project_id)
            raise
        job = self._threads.submit(work, *args)
        loop = asyncio.get_running_loop()

        def free(_: Future[T]) -> None:
            place.release()
            self._end_job(project_id)

        # A job that runs cannot be stopped: whoever stops waiting for it leaves its place taken until it has ended.
        job.add_done_callback(lambda done: loop.call_soon_threadsafe(free, done))
        return await asyncio.wrap_future(job)

    def _end_job(self, project_id: str) -> None:
        self._num_jobs[project_id] -= 1
        if not self._num_jobs[project_id]:
            del self._num_jobs[project_id], self._places[project_id]
