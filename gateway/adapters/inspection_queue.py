"""The order in which adapters are inspected: one at a time on a machine, the projects in turn.

Within a gateway projects stand in line; between the gateways of a machine a locked file decides, which the kernel takes
back from a process that dies. Knows nothing of the inspections.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.domain.errors import Overloaded
from gateway.support.process import make_private_folder

MAX_WAIT_S = 120.0
"""Seconds that an adapter waits for its turn: about two of the longest inspections."""

RETRY_AFTER_S = 30.0

POLL_S = 0.02
GAP_S = 2 * POLL_S
"""Seconds between two turns of the same gateway, in which another gateway that waits tries for the lock."""


class InspectionQueue:
    """The turns of inspections. A gateway process has one.

    lock_path: the path of the lock file, made on demand; the same for all gateways of a machine.
    """

    def __init__(self, lock_path: Path, *, max_wait_s: float = MAX_WAIT_S) -> None:
        self._lock_path = lock_path
        self._max_wait_s = max_wait_s
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by project, the next one first
        self._is_taken = False
        self._free_s = 0.0  # by the event loop's time

    @asynccontextmanager
    async def turn(self, project_id: str) -> AsyncIterator[None]:
        """Wait for the project's turn, which lasts as long as the context.

        Raises Overloaded: when the turn did not come in time.
        """
        try:
            async with asyncio.timeout(self._max_wait_s):
                await self._wait_in_line(project_id)
                try:
                    lock = await self._lock()
                except BaseException:
                    self._pass_on()
                    raise
        except TimeoutError:
            raise Overloaded(
                "Too many adapters are waiting for inspection. Send this one again later.", retry_after_s=RETRY_AFTER_S
            ) from None
        try:
            yield
        finally:
            os.close(lock)
            self._free_s = asyncio.get_running_loop().time() + GAP_S
            self._pass_on()

    async def _wait_in_line(self, project_id: str) -> None:
        """Wait until it is this project's turn in this gateway."""
        if not self._is_taken:
            self._is_taken = True
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(project_id, deque()).append(turn)
        try:
            await turn
        except BaseException:
            if not turn.cancelled():  # it had just come
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Pass the turn to the first waiter of the project that has waited longest, and put that project last."""
        while self._waiting:
            project_id = next(iter(self._waiting))
            turns = self._waiting.pop(project_id)
            turn = turns.popleft()
            if turns:
                self._waiting[project_id] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False

    async def _lock(self) -> int:
        """Wait for the lock file, and return its descriptor.

        The lock is tried again and again, since a wait for it in the kernel could not be canceled.
        """
        await asyncio.sleep(max(0.0, self._free_s - asyncio.get_running_loop().time()))
        make_private_folder(self._lock_path.parent)
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    await asyncio.sleep(POLL_S)
                else:
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
