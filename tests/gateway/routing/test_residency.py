"""Pinned adapters are on every engine that connects; a new version comes before the old one leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from adapters.ref import content_key
from engine.protocol import LoadAdapter, UnloadAdapter
from gateway.adapters.residency import Residency
from gateway.backends.base import Health
from gateway.db.adapters.adapter_settings import SettingsRow, find_settings, set_settings
from gateway.db.pool import Database
from gateway.domain.errors import InvalidRequest, Overloaded
from tests.gateway.bases import BASE_DIGEST, put_adapter
from tests.gateway.live import make_tenant
from tests.gateway.routing.conftest import City, Tenant, digest_of_version
from tests.patience import PATIENCE_S


class Engine:
    """A fake backend that holds the adapters it loaded, and refuses the keys in `bad`.

    bug: the error that the next load raises; None: it raises none.
    """

    def __init__(self) -> None:
        self.engine_id = "first"
        self.ready = True
        self.asked: list[str] = []
        self.held: set[str] = set()
        self.bad: set[str] = set()
        self.bug: Exception | None = None

    def health(self) -> Health:
        return Health(self.ready, "", engine_id=self.engine_id)

    async def load(self, key: str) -> None:
        self.asked.append(f"load {key[:8]}")
        if self.bug is not None:
            bug, self.bug = self.bug, None
            raise bug
        if key in self.bad:
            raise InvalidRequest("it does not fit", param="model")
        if not self.ready:
            raise Overloaded("it is gone")
        self.held.add(key)

    async def unpin(self, key: str) -> None:
        self.asked.append(f"unpin {key[:8]}")
        self.held.discard(key)

    def restart(self) -> None:
        self.engine_id, self.held = "second", set()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)


class Pins:
    """The pinned adapters of one tenant, and the residency that is notified of changes."""

    def __init__(self, database: Database, project_id: str, residency: Residency) -> None:
        self._database = database
        self._project_id = project_id
        self._residency = residency

    def key(self, number: int) -> str:
        return content_key(self._project_id, digest_of_version(number))

    async def put(self, name: str, number: int) -> None:
        async with self._database.acquire() as conn:
            await put_adapter(conn, self._project_id, name, digest=digest_of_version(number), rank=8, size_bytes=1)
        self._residency.changed(None)

    async def pin(self, name: str, pinned: bool) -> None:
        async with self._database.acquire() as conn:
            row = await find_settings(conn, self._project_id, name)
            assert row is not None
            await set_settings(conn, SettingsRow(row.adapter_id, row.defaults, pinned))
        self._residency.changed(None)


@pytest.fixture
def engines() -> list[Engine]:
    return [Engine(), Engine()]


@pytest.fixture
async def pins(database: Database, dsn: str, engines: list[Engine]) -> AsyncIterator[Pins]:
    tenant = await make_tenant(dsn, "acme", "pirate", "1")
    residency = Residency(database, lambda: [(BASE_DIGEST, engine) for engine in engines])
    pins = Pins(database, tenant.project_id, residency)
    residency.start()
    yield pins
    await residency.stop()


async def test_every_engine_holds_what_is_pinned_and_lets_it_go(engines: list[Engine], pins: Pins) -> None:
    await pins.put("poet", 2)
    await pins.pin("pirate", True)
    await until(lambda: all(engine.held == {pins.key(1)} for engine in engines))
    await pins.put("pirate", 3)
    await until(lambda: all(engine.held == {pins.key(3)} for engine in engines))
    await pins.pin("pirate", False)
    await until(lambda: all(engine.held == set() for engine in engines))
    for engine in engines:
        assert engine.asked == ["load 00000001", "load 00000003", "unpin 00000001", "unpin 00000003"]


async def test_an_engine_that_connects_later_gets_the_pinned_adapters(engines: list[Engine], pins: Pins) -> None:
    late, again = engines
    late.ready = False
    await pins.pin("pirate", True)
    await until(lambda: again.held == {pins.key(1)})
    late.ready = True
    again.restart()
    await until(lambda: late.held == again.held == {pins.key(1)})


async def test_an_adapter_that_one_engine_refuses_holds_up_no_other_adapter(engines: list[Engine], pins: Pins) -> None:
    picky, other = engines
    picky.bad.add(pins.key(1))
    await pins.pin("pirate", True)
    await pins.put("poet", 2)
    await pins.pin("poet", True)
    await until(lambda: picky.held == {pins.key(2)} and other.held == {pins.key(1), pins.key(2)})
    assert picky.asked.count("load 00000001") == 1, "it is left alone for a while"


async def test_a_mistake_of_one_engine_does_not_end_the_work(engines: list[Engine], pins: Pins) -> None:
    engines[0].bug = KeyError("a mistake")
    await pins.pin("pirate", True)
    await until(lambda: engines[0].bug is None)
    await pins.put("pirate", 3)
    await until(lambda: all(engine.held == {pins.key(3)} for engine in engines))


async def test_pins_over_http_reach_the_engine(city: City, operator: httpx.AsyncClient, tenants: list[Tenant]) -> None:
    tenant = tenants[0]
    await tenant.put("pirate", 77)
    key = content_key(tenant.project_id, digest_of_version(77))

    def asked() -> list[Any]:
        return [each for each in city.engine.commands if isinstance(each, LoadAdapter | UnloadAdapter)]

    path = f"{tenant.path}/adapters/pirate"
    assert (await operator.post(path, json={"pinned": True})).json()["pinned"] is True
    await until(lambda: [each.digest for each in asked() if isinstance(each, LoadAdapter)].count(key) == 2)
    assert (await operator.post(path, json={"pinned": False})).json()["pinned"] is False
    await until(lambda: [each.digest for each in asked() if isinstance(each, UnloadAdapter)].count(key) == 2)
