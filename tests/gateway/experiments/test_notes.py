"""Notes that requests leave in memory are written each second, once, and within bounds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter

from gateway.db.pool import Database
from gateway.domain.errors import BackendFailed, ClientGone, GatewayError, InvalidRequest, LimitReached, Overloaded
from gateway.domain.experiments.assignment import Reason, unit_digest
from gateway.domain.experiments.exposure import Exposure
from gateway.domain.experiments.segment_values import Origin
from gateway.experiments.notes import Notes
from tests.gateway.bases import BASE_DIGEST
from tests.gateway.experiments.making import KEY, ArmOf, StartedExperiment, make_pool_row, start_experiment
from tests.gateway.live import Tenant, make_tenant

ORIGIN = Origin("key_1", "/v1/chat/completions", True, "default", "gw")
LIMITED = LimitReached("too many")


@pytest.fixture
async def acme(dsn: str) -> Tenant:
    return await make_tenant(dsn, "acme", "pirate", "1")


@pytest.fixture
async def made(database: Database, acme: Tenant) -> StartedExperiment:
    async with database.transaction() as conn:
        await make_pool_row(conn, "tiny", BASE_DIGEST)
        return await start_experiment(conn, acme.project_id, [ArmOf("control", "pirate"), ArmOf("plain")])


class Unreachable:
    """A database that is unavailable until a test restores it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.is_away = True

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        if self.is_away:
            raise ConnectionRefusedError("nobody listens")
        async with self._database.transaction() as conn:
            yield conn


def lost_counter() -> Counter:
    return Counter("lost", "", registry=CollectorRegistry())


def value_of(counter: Counter) -> float:
    return next(iter(counter.collect())).samples[0].value


def exposure(made: StartedExperiment, unit: str, arm: int = 0, reason: Reason = "split") -> Exposure:
    epoch, name = int(reason == "split"), made.definition.arms[arm].name
    return Exposure(made.id, "support-tone", 1, arm, name, epoch, reason, unit_digest(KEY, unit))


async def rows_of(database: Database, table: str) -> list[Any]:
    async with database.acquire() as conn:
        return await conn.fetch(f"SELECT * FROM {table}")


async def test_a_unit_is_written_once_and_keeps_its_first_epoch(database: Database, made: StartedExperiment) -> None:
    notes, other = Notes(database, lost_counter()), Notes(database, lost_counter())
    for _ in range(3):
        notes.note_exposure(exposure(made, "ann", 1))
        await notes.flush()
    other.note_exposure(Exposure(made.id, "support-tone", 2, 0, "control", 2, "split", unit_digest(KEY, "ann")))
    other.note_exposure(exposure(made, "bob"))
    await other.flush()
    found = {row["digest"]: (row["epoch"], row["arm"]) for row in await rows_of(database, "experiment_units")}
    assert found == {unit_digest(KEY, "ann"): (1, 1), unit_digest(KEY, "bob"): (1, 0)}


@pytest.mark.parametrize(
    ("error", "is_refusal"),
    [
        (LIMITED, True),
        (InvalidRequest("wrong"), True),
        (Overloaded("full", retry_after_s=1.0), True),
        (ClientGone("left"), False),
        (BackendFailed("broke"), False),
    ],
)
async def test_a_refusal_is_an_event_of_its_unit(
    database: Database, acme: Tenant, made: StartedExperiment, error: GatewayError, is_refusal: bool
) -> None:
    notes = Notes(database, lost_counter())
    for number in range(3):
        notes.note_refusal(exposure(made, "ann", 1), acme.project_id, f"req_{number}", error, ORIGIN)
    notes.note_refusal(exposure(made, "bob", 0, "no_unit"), acme.project_id, "req_x", error, ORIGIN)
    await notes.flush()
    requests = await rows_of(database, "experiment_requests")
    found = [(row["request_id"], row["num_refused"], row["arm"]) for row in requests]
    origins = [(row["api_key_id"], row["endpoint"], row["stream"], row["gateway"]) for row in requests]
    assert origins == ([("key_1", "/v1/chat/completions", True, "gw")] if is_refusal else [])
    events = [(row["kind"], row["request_id"]) for row in await rows_of(database, "experiment_events")]
    assert found == ([("req_0", 3, 1)] if is_refusal else [])
    assert events == ([("refusal", "req_0")] if is_refusal else [])


async def test_notes_wait_while_the_database_is_away(database: Database, acme: Tenant, made: StartedExperiment) -> None:
    away, counter = Unreachable(database), lost_counter()
    notes = Notes(away, counter)  # type: ignore[arg-type]
    for number in range(2):
        notes.note_exposure(exposure(made, "ann"))
        notes.note_exposure(exposure(made, "", 0, "no_unit"))
        notes.note_refusal(exposure(made, "ann"), acme.project_id, f"req_{number}", LIMITED, ORIGIN)
        await notes.flush()
    assert await rows_of(database, "experiment_units") == []
    away.is_away = False
    await notes.flush()
    assert len(await rows_of(database, "experiment_units")) == 1
    assert {row["request_id"] for row in await rows_of(database, "experiment_requests")} == {"req_0", "req_1"}
    assert [(row["reason"], row["num_requests"]) for row in await rows_of(database, "experiment_reasons")] == [
        ("no_unit", 2)
    ]
    assert value_of(counter) == 0


async def test_notes_take_a_bounded_room_and_say_what_is_lost(database: Database, made: StartedExperiment) -> None:
    counter = lost_counter()
    notes = Notes(database, counter, max_waiting=3, max_written=2)
    for number in range(5):
        notes.note_exposure(exposure(made, f"user-{number}"))
    assert value_of(counter) == 2
    await notes.flush()
    assert len(notes._written) == 2
    assert len(await rows_of(database, "experiment_units")) == 3


async def test_notes_of_an_experiment_that_is_gone_go_with_it(
    database: Database, acme: Tenant, made: StartedExperiment
) -> None:
    notes = Notes(database, lost_counter())
    gone = Exposure("exp_gone", "gone", 1, 0, "control", 1, "split", b"d" * 16)
    notes.note_exposure(gone)
    notes.note_refusal(gone, acme.project_id, "req_1", LIMITED, ORIGIN)
    notes.note_exposure(exposure(made, "ann"))
    await notes.flush()
    assert [row["experiment_id"] for row in await rows_of(database, "experiment_units")] == [made.id]
    assert await rows_of(database, "experiment_requests") == []


class UnheardDatabase:
    """A database that commits a write, but reports a lost connection to the writer."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.is_heard = False

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self._database.transaction() as conn:
            yield conn
        if not self.is_heard:
            raise ConnectionResetError("the reply was lost")


async def test_notes_whose_writing_was_not_heard_of_count_once(
    database: Database, acme: Tenant, made: StartedExperiment
) -> None:
    unheard, counter = UnheardDatabase(database), lost_counter()
    notes = Notes(unheard, counter)  # type: ignore[arg-type]
    notes.note_exposure(exposure(made, "", 0, "no_unit"))
    notes.note_refusal(exposure(made, "ann"), acme.project_id, "req_1", LIMITED, ORIGIN)
    await notes.flush()
    notes.note_exposure(exposure(made, "", 0, "no_unit"))
    await notes.flush()
    unheard.is_heard = True
    await notes.flush()
    assert [row["num_requests"] for row in await rows_of(database, "experiment_reasons")] == [2]
    assert len(await rows_of(database, "experiment_events")) == 1
    assert value_of(counter) == 0


async def test_a_gateway_that_stops_is_not_waited_for(database: Database, made: StartedExperiment) -> None:
    notes = Notes(database, lost_counter())
    notes.start()
    notes.note_exposure(exposure(made, "ann"))
    await notes.flush()
    assert len(await rows_of(database, "experiment_gateways")) == 1
    await notes.stop()
    assert await rows_of(database, "experiment_gateways") == []
    assert len(await rows_of(database, "experiment_units")) == 1
