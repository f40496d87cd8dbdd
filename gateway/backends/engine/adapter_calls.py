"""The calls about adapters that a gateway made to one engine, and the callers that wait for their answers.

Answers go by the adapter's content key and come to every gateway, so one answer may end several calls, or be for
another gateway. Knows nothing of how messages travel, nor of what the answers mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from engine.protocol import AdapterStatus, LoadAdapter, UnloadAdapter

Waiter = asyncio.Future[AdapterStatus]


class AdapterCalls:
    """The calls of one gateway to one engine that wait for an answer."""

    def __init__(self, send: Callable[[LoadAdapter | UnloadAdapter], None]) -> None:
        self._send = send
        self._waiters: dict[tuple[str, bool], list[Waiter]] = {}  # by content key, and whether for a probe

    async def ask(self, command: LoadAdapter | UnloadAdapter, timeout_s: float) -> AdapterStatus:
        """Send a command about an adapter, and return the engine's answer.

        A second call that asks for a probe which is under way waits for the same answer.

        Raises TimeoutError: when no answer comes within timeout_s.
        Raises an error that the `make_error` of `lost` makes: when the connection is lost before the answer.
        Raises EngineGone: when no engine is there to read the command.
        """
        probes = isinstance(command, LoadAdapter) and command.probe
        waiters = self._waiters.setdefault((command.digest, probes), [])
        waiter: Waiter = asyncio.get_running_loop().create_future()
        waiters.append(waiter)
        try:
            if not probes or len(waiters) == 1:
                self._send(command)
            async with asyncio.timeout(timeout_s):
                return await waiter
        finally:
            self._remove_waiter(command.digest, probes, waiter)

    def answered(self, status: AdapterStatus) -> None:
        """Give an answer of the engine to all calls that wait for it."""
        for waiter in self._waiters.get((status.digest, status.probed), ()):
            if not waiter.done():
                waiter.set_result(status)

    def lost(self, make_error: Callable[[], Exception]) -> None:
        """End each call with an error: the engine is gone, and no answer will come.

        make_error: makes the error, anew for each call.
        """
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(make_error())

    def _remove_waiter(self, key: str, probes: bool, waiter: Waiter) -> None:
        waiters = self._waiters[key, probes]
        waiters.remove(waiter)
        if not waiters:
            del self._waiters[key, probes]
