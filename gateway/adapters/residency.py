"""Keeps pinned adapters on every engine that connects, and unpins those that are pinned no more.

The arms of running and paused experiments count as pinned. Each gateway does so for the engines that it talks to: to
load a loaded adapter, or to unpin an unpinned one, changes nothing. A gateway remembers its own calls to an engine
alone, so a pin that ends while no gateway runs lasts until the engine ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol

from gateway.backends.base import Health
from gateway.db.adapters.adapter_settings import list_pinned
from gateway.db.changes import Change
from gateway.db.pool import Database
from gateway.domain.errors import GatewayError
from gateway.support.worker import Worker

POLL_S = 1.0
"""Seconds between two looks for new engines."""
RETRY_S = 10.0
"""Seconds until a failed call to an engine is tried again, for example while the engine cannot reach its store."""

ASKED_S = 30.0
"""Seconds for which adapters that `load` was called for stay on engines without being pinned."""
LOAD_TIMEOUT_S = 20.0
"""The most seconds that a caller of `load` waits."""

log = logging.getLogger(__name__)

Wanted = tuple[str | None, str]
"""A pair of the digest of a base model and a content key."""


class Engine(Protocol):
    """The interface of a backend that keeps adapters resident."""

    def health(self) -> Health:
        """Return whether the engine can be asked."""

    async def load(self, key: str) -> None:
        """Make an adapter resident, and keep it resident."""

    async def unpin(self, key: str) -> None:
        """Let the engine evict a pinned adapter again like any other."""


class Residency(Worker):
    """Keeps pinned adapters on engines from `start` to `stop`. Subscribe `changed` to the change feed."""

    def __init__(self, database: Database, engines: Callable[[], Sequence[tuple[str, Engine]]]) -> None:
        """Start without pins.

        engines: returns the engines that are there now, each with the digest of the base model it serves.
        """
        super().__init__(self._step, POLL_S, name="pinned adapters")
        self._database = database
        self._engines = engines
        self._held: dict[Engine, _Held] = {}
        self._pinned: list[Wanted] = []
        self._asked: dict[Wanted, float] = {}  # until when, by the loop's time
        self._is_stale = True

    def changed(self, change: Change | None) -> None:
        """Read the pinned adapters again if a change may be about adapters, projects or experiments."""
        if change is None or change.table in ("adapters", "projects", "experiments"):
            self._is_stale = True
            self._wake.set()

    async def _step(self) -> None:
        """Read the pinned adapters, and make the engines hold them.

        If the database does not answer, engines hold the adapters that were pinned when it last did.
        """
        try:
            await self._look_up()
        finally:
            await self._hold()

    async def load(self, wanted: Collection[Wanted]) -> frozenset[Wanted]:
        """Load adapters on every engine of their bases that is ready, to be pinned soon.

        Return the adapters that an engine refused or did not load in time, and those whose base no ready engine
        serves.
        """
        now_s = asyncio.get_running_loop().time()
        self._asked = {each: until_s for each, until_s in self._asked.items() if until_s > now_s}
        self._asked |= dict.fromkeys(wanted, now_s + ASKED_S)
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                await self._hold(again=True)
        except TimeoutError:
            log.warning("adapters that were asked for are not loaded yet")
        return frozenset(each for each in wanted if not self._is_held(*each))

    async def _hold(self, *, again: bool = False) -> None:
        """Make each engine hold its pinned adapters. again: True: failed calls are tried again at once."""
        engines = self._engines()
        self._held = {engine: self._held.get(engine) or _Held(engine) for _, engine in engines}
        await asyncio.gather(*(self._held[engine].hold(self._pinned_of(base), again=again) for base, engine in engines))

    def _is_held(self, base: str | None, key: str) -> bool:
        """Tell whether a base has ready engines, all of which hold the content of a key.

        base: the digest of the base; None is the base of no engine.
        """
        ready = [self._held[engine] for of, engine in self._engines() if of == base and engine.health().ready]
        return bool(ready) and all(held.holds(key) for held in ready)

    def _pinned_of(self, base: str) -> list[str]:
        """Return the content keys of the pinned adapters of a base, and of those that were asked for.

        The oldest adapter comes first.
        """
        now_s = asyncio.get_running_loop().time()
        asked = [each for each, until_s in self._asked.items() if until_s > now_s]
        return [key for of, key in dict.fromkeys((*self._pinned, *asked)) if of == base]

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
    """One engine, and the adapters that this gateway made it hold."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._engine_id = ""
        self._held: set[str] = set()
        self._failed: dict[str, float] = {}  # until when, by the loop's time, each is left alone

    def holds(self, key: str) -> bool:
        """Tell whether the engine holds this content at this gateway's request."""
        return key in self._held

    async def hold(self, pinned: Sequence[str], *, again: bool = False) -> None:
        """Make the engine hold these adapters, and unpin others that this gateway made it hold.

        again: True: failed calls are tried again at once.
        """
        health = self._engine.health()
        if not health.ready:
            return
        if health.engine_id != self._engine_id:  # another process: it holds nothing yet
            self._engine_id, self._held, self._failed = health.engine_id, set(), {}
        now_s = asyncio.get_running_loop().time()
        self._failed = {} if again else {key: until for key, until in self._failed.items() if until > now_s}
        for key in pinned:
            if key not in self._held and await self._ask(self._engine.load, key):
                self._held.add(key)
        for key in self._held.difference(pinned):  # a new version is there before the old one may leave
            if await self._ask(self._engine.unpin, key):
                self._held.discard(key)

    async def _ask(self, command: Callable[[str], Awaitable[None]], key: str) -> bool:
        """Send a command about an adapter to the engine, and return whether the engine did it.

        After a failure, wait some time.

        command: loads or unloads the adapter of a key.
        """
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
