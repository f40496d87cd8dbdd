"""Keeps pinned adapters on every engine that connects, and lets those go that are pinned no more.

Each gateway does so for the engines that it talks to: to load what is there, or to let go what is not, changes nothing.
It remembers of an engine what it did itself, so a pin that ends while no gateway runs lasts until the engine ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from gateway.backends.base import Health
from gateway.db.adapters.adapter_settings import list_pinned
from gateway.db.changes import Change
from gateway.db.pool import Database
from gateway.domain.errors import GatewayError
from gateway.support.worker import forever

LOOK_S = 1.0
"""How soon an engine is noticed that came."""
RETRY_S = 10.0
"""How soon what failed is tried again, as while the engine's store is away."""

log = logging.getLogger(__name__)


class Engine(Protocol):
    """The interface of a backend that keeps adapters resident."""

    def health(self) -> Health: ...

    async def load(self, key: str) -> None: ...

    async def unpin(self, key: str) -> None: ...


class Residency:
    """Works from `start` to `stop`; pass the change feed `changed`."""

    def __init__(self, database: Database, engines: Callable[[], Sequence[tuple[str, Engine]]]) -> None:
        """engines: those that are there now, each with the digest of the base model that it serves."""
        self._database = database
        self._engines = engines
        self._held: dict[Engine, _Held] = {}
        self._pinned: list[tuple[str | None, str]] = []
        self._is_stale = True
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(forever(self._step, LOOK_S, name="pinned adapters", wake=self._wake))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def changed(self, change: Change | None) -> None:
        if change is None or change.table in ("adapters", "projects"):
            self._is_stale = True
            self._wake.set()

    async def _step(self) -> None:
        """Engines get what was pinned when that was last known."""
        try:
            await self._look_up()
        finally:
            engines = self._engines()
            self._held = {engine: self._held.get(engine) or _Held(engine) for _, engine in engines}
            await asyncio.gather(*(self._held[engine].hold(self._pinned_of(base)) for base, engine in engines))

    def _pinned_of(self, base: str) -> list[str]:
        """Return the content keys of the pinned adapters of a base, the oldest adapter first."""
        return [key for of, key in self._pinned if of == base]

    async def _look_up(self) -> None:
        if not self._is_stale:
            return
        self._is_stale = False
        try:
            async with self._database.acquire() as conn:
                self._pinned = await list_pinned(conn)
        except Exception:
            self._is_stale = True
            raise


class _Held:
    """One engine, and what this gateway made it hold."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._engine_id = ""
        self._held: set[str] = set()
        self._failed: dict[str, float] = {}  # until when, by the loop's time, each is left alone

    async def hold(self, pinned: Sequence[str]) -> None:
        """These and no other of those that were held."""
        health = self._engine.health()
        if not health.ready:
            return
        if health.engine_id != self._engine_id:  # another process: it holds nothing yet
            self._engine_id, self._held, self._failed = health.engine_id, set(), {}
        now_s = asyncio.get_running_loop().time()
        self._failed = {key: until_s for key, until_s in self._failed.items() if until_s > now_s}
        for key in pinned:
            if key not in self._held and await self._ask(self._engine.load, key):
                self._held.add(key)
        for key in self._held.difference(pinned):  # a new version is there before the old one may leave
            if await self._ask(self._engine.unpin, key):
                self._held.discard(key)

    async def _ask(self, command: Callable[[str], Awaitable[None]], key: str) -> bool:
        """Ask the engine, and return whether it was done."""
        if key in self._failed:
            return False
        try:
            await command(key)
        except GatewayError as error:
            log.warning("a pinned adapter is not as it should be on the engine: %s: %s", key, error.message)
        except Exception:
            log.exception("a pinned adapter is not as it should be on the engine: %s", key)
        else:
            return True
        self._failed[key] = asyncio.get_running_loop().time() + RETRY_S
        return False
