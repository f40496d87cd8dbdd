"""Promises of a whole installation: harm stops on all gateways, each a process of its own, and a forgotten unit is
gone at once and can be read nowhere."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import itertools
import re
import time
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import msgspec
import pytest

from gateway.content.keys import content_keys
from gateway.db.experiments.units import FORGET
from gateway.db.pool import Database
from gateway.domain.experiments.assignment import assign, unit_digest
from gateway.domain.experiments.exposure import log_id
from gateway.experiments.keys import ProjectKeys
from gateway.postgres import dump
from gateway.settings import Settings
from gateway.support.cipher import Cipher
from tests.gateway.content.conftest import all_rows_as_text
from tests.gateway.experiments import books_rows
from tests.gateway.experiments.books_rows import UnitRequest, send, unit, vote
from tests.gateway.experiments.making import ArmOf, StartedExperiment, start_experiment
from tests.gateway.experiments.test_books import LONG_AGO
from tests.gateway.live import BASE, FakeEngine, make_operator_key
from tests.gateway.model_folder import make_model_folder
from tests.installation.gateway_process import GatewayProcess
from tests.installation.tenants import Key, make_key
from tests.installation.waiting import until
from tests.patience import PATIENCE_S, least

NUM_GATEWAYS = 3
WITHIN_S = 2.0
HEADER = "x-lorikeet-experiment"
ARMS = (ArmOf("control"), ArmOf("warm"))
_WAITING = "SELECT count(*) FROM experiment_events"
_NUMBERS = itertools.count(1)


class Fleet(msgspec.Struct, frozen=True):
    """The gateways of one installation, and an operator's key."""

    dsn: str
    settings: Settings
    gateways: list[GatewayProcess]
    operator: dict[str, str]
    """The headers of requests to the admin API."""

    async def unit_key(self, project_id: str) -> bytes:
        """Return the secret of a project's units."""
        async with await Database.connect(self.dsn, max_size=1) as database:
            cipher = Cipher(content_keys(None, self.settings.content_key_path))
            return await ProjectKeys(database, cipher).key(project_id)


@pytest.fixture(scope="module")
def fleet(module_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    model_dir = make_model_folder(folder / "model")
    settings = Settings(data_dir=folder, model=str(model_dir), model_name=BASE)
    settings.run_dir.mkdir(parents=True)
    operator = asyncio.run(make_operator_key(module_dsn))
    with ExitStack() as stack:
        stack.callback(FakeEngine(settings.engine.endpoint, model_dir).stop)
        gateways = [GatewayProcess(settings, module_dsn, number) for number in range(NUM_GATEWAYS)]
        for gateway in gateways:
            stack.callback(gateway.close)
            gateway.start()
        for gateway in gateways:
            gateway.wait_ready()
        yield Fleet(module_dsn, settings, gateways, {"authorization": f"Bearer {operator}"})


@pytest.fixture
async def conn(module_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    opened = await asyncpg.connect(module_dsn)
    yield opened
    await opened.close()


async def arm_of(client: httpx.AsyncClient, user: str) -> str:
    """Send a chat request of a unit, and return the arm that its reply names."""
    body = {"model": "support-bot", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "user": user}
    reply = await client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.headers[HEADER].split('arm="')[1].split('"')[0]


async def until_counted(conn: asyncpg.Connection) -> None:
    """Wait until the gateways have counted all waiting events."""

    async def is_counted() -> bool:
        return not await conn.fetchval(_WAITING)

    await until(is_counted, "events are not counted")


async def seconds_to_pause(fleet: Fleet, conn: asyncpg.Connection) -> float:
    """Write rows that prove harm. Return the seconds from their commit until no gateway serves the arm any more."""
    key: Key = await make_key(fleet.dsn, f"harmed-{next(_NUMBERS)}")
    made: StartedExperiment = await start_experiment(conn, key.project_id, ARMS, pool=BASE)
    rows = books_rows.RunningExperiment(key.organization_id, key.project_id, made.id)
    treated = next(f"user-{n}" for n in range(100) if assign(made.split, f"user-{n}", b"").arm == 1)
    await send(
        conn, rows, [UnitRequest(unit(n), n % 2, finish_reason="error" if n < 8 else "stop") for n in range(100)]
    )

    async def last_served_s(gateway: GatewayProcess) -> float:
        async with httpx.AsyncClient(base_url=gateway.url, headers=key.headers, timeout=PATIENCE_S) as client:
            assert await arm_of(client, treated) == "warm"
            ready.release()
            last_s = await began
            while True:
                asked_s = asyncio.get_running_loop().time()
                if await arm_of(client, treated) == "control":
                    return last_s
                last_s = asked_s

    ready, began = asyncio.Semaphore(0), asyncio.get_running_loop().create_future()
    asking = [asyncio.create_task(last_served_s(gateway)) for gateway in fleet.gateways]
    for _ in fleet.gateways:
        await ready.acquire()
    await until_counted(conn)
    await send(conn, rows, [UnitRequest(unit(n), 1, finish_reason="error") for n in range(100, 125)])
    began_s = asyncio.get_running_loop().time()
    began.set_result(began_s)
    took_s = max(await asyncio.gather(*asking)) - began_s
    state, why = await conn.fetchrow("SELECT state, why FROM experiments WHERE id = $1", made.id)
    assert state == "paused" and "error_rate" in why
    return took_s


async def test_no_gateway_serves_an_arm_two_seconds_after_the_row_that_proves_its_harm(
    fleet: Fleet, conn: asyncpg.Connection
) -> None:
    took_s = await least(lambda: seconds_to_pause(fleet, conn), WITHIN_S)
    print(f"{took_s:.2f} s to the last request that the paused arm got on {NUM_GATEWAYS} gateways")
    assert took_s < WITHIN_S


FORGOTTEN_WITHIN_S = 1.0
_METRICS = """
    INSERT INTO feedback_metrics (project_id, name, type, goal, kind) VALUES ($1, 'paid', 'number', 'increase', 'mean')
"""
_UNITS_LIKE = """
    INSERT INTO experiment_units (experiment_id, digest, epoch, arm, state, closes_at, is_closed, num_requests)
    SELECT experiment_id, decode(md5(n::text), 'hex'), epoch, arm, state, closes_at, is_closed, num_requests
    FROM experiment_units CROSS JOIN generate_series(1, $2::integer) AS n WHERE experiment_id = $1
"""
_REQUESTS_LIKE = """
    INSERT INTO experiment_requests
        (request_id, project_id, experiment_id, digest, epoch, arm, is_delivered, created_at)
    SELECT request_id || n, project_id, experiment_id, decode(md5(n::text), 'hex'), epoch, arm, is_delivered, created_at
    FROM experiment_requests CROSS JOIN generate_series(1, $2::integer) AS n WHERE experiment_id = $1
"""
_VOTES_LIKE = """
    INSERT INTO feedback (id, project_id, request_id, metric, source, value, fingerprint, occurred_at)
    SELECT id || n, project_id, request_id || n, metric, source, value, fingerprint, occurred_at
    FROM feedback CROSS JOIN generate_series(1, $2::integer) AS n WHERE project_id = $1
"""
_ANALYZE = "ANALYZE experiment_units, experiment_requests, feedback"
_OF_UNIT = """
    SELECT (SELECT count(*) FROM experiment_units WHERE digest = $1)
         + (SELECT count(*) FROM experiment_requests WHERE digest = $1)
         + (SELECT count(*) FROM feedback WHERE digest = $1)
         + (SELECT count(*) FROM feedback_counted WHERE digest = $1)
"""


async def rows_read_in_vain(conn: asyncpg.Connection, statement: str, project_id: str, digest: bytes) -> int:
    """Execute a statement and roll it back; return the number of rows that it read and filtered out."""
    undone = conn.transaction()
    await undone.start()
    plan = await conn.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", project_id, digest)
    await undone.rollback()
    return sum(int(number) for number in re.findall(r'"Rows Removed by (?:Join )?Filter": (\d+)', plan))


async def test_one_unit_of_many_is_forgotten_within_a_second(
    fleet: Fleet, conn: asyncpg.Connection, full: bool
) -> None:
    num_units = 500_000 if full else 50_000
    key = await make_key(fleet.dsn, "forgetful")
    await conn.execute(_METRICS, key.project_id)
    made = await start_experiment(conn, key.project_id, ARMS, pool=BASE)
    rows = books_rows.RunningExperiment(key.organization_id, key.project_id, made.id)
    (request_id,) = await send(conn, rows, [UnitRequest(unit(0), at=LONG_AGO)])
    await vote(conn, rows, 1, request_id=request_id, at=LONG_AGO)
    await until_counted(conn)
    for sql, of in ((_UNITS_LIKE, made.id), (_REQUESTS_LIKE, made.id), (_VOTES_LIKE, key.project_id)):
        await conn.execute(sql, of, num_units)
    await conn.execute(_ANALYZE)
    secret, numbers = await fleet.unit_key(key.project_id), itertools.count()
    path = f"/v1/organization/projects/{key.project_id}/experiment_units/forget"

    async def seconds() -> float:
        name = f"ann-{next(numbers)}@example.com"
        digest = unit_digest(secret, name)
        (request_id,) = await send(conn, rows, [UnitRequest(digest, at=LONG_AGO)])
        await vote(conn, rows, 1, request_id=request_id, at=LONG_AGO)
        await vote(conn, rows, 1, digest=digest, at=LONG_AGO)
        await until_counted(conn)
        assert await conn.fetchval(_OF_UNIT, digest) == 5
        await send(conn, rows, [UnitRequest(digest, at=LONG_AGO)] * 2)  # which wait, behind those of others
        await send(conn, rows, [UnitRequest(unit(n), at=LONG_AGO) for n in range(3_000)])
        async with httpx.AsyncClient(
            base_url=fleet.gateways[0].url, headers=fleet.operator, timeout=PATIENCE_S
        ) as client:
            began_s = asyncio.get_running_loop().time()
            reply = await client.post(path, json={"unit": name}, timeout=PATIENCE_S)
            took_s = asyncio.get_running_loop().time() - began_s
        assert (reply.status_code, reply.json()["experiments"]) == (200, 1)
        assert await conn.fetchval(_OF_UNIT, digest) == 0
        return took_s

    for statement in FORGET:
        assert await rows_read_in_vain(conn, statement, key.project_id, unit(0)) < num_units / 100, statement
    took_s = await least(seconds, FORGOTTEN_WITHIN_S)
    print(f"{took_s:.3f} s to forget one of {num_units:,} units")
    assert took_s < FORGOTTEN_WITHIN_S


NAME = "quagga.zebra@example.com"
EXPORTS = [
    *((kind, suffix) for kind in ("exposures", "outcomes", "feedback") for suffix in ("csv", "jsonl", "parquet")),
    ("analysis", "json"),
]


def forms_of(name: str) -> list[bytes]:
    """Return the encodings in which files and tables may hold a name: text, hex, base64 at each offset, hashes."""
    raw = name.encode()
    in_base64 = [base64.b64encode(b"\0" * offset + raw)[4 if offset else 0 : -4] for offset in range(3)]
    hashed = [hashlib.new(kind, raw).hexdigest().encode() for kind in ("md5", "sha1", "sha256", "blake2b")]
    return [raw, raw.hex().encode(), *in_base64, *hashed]


async def test_a_unit_can_be_read_nowhere_and_once_forgotten_not_even_its_digest(
    fleet: Fleet, conn: asyncpg.Connection, tmp_path: Path
) -> None:
    key = await make_key(fleet.dsn, "private")
    await conn.execute(_METRICS, key.project_id)
    made = await start_experiment(conn, key.project_id, ARMS, pool=BASE)
    digest = unit_digest(await fleet.unit_key(key.project_id), NAME)
    project = f"/v1/organization/projects/{key.project_id}"
    for gateway in fleet.gateways:
        async with httpx.AsyncClient(base_url=gateway.url, headers=key.headers, timeout=PATIENCE_S) as client:
            body = {"model": "support-bot", "prompt": "x", "max_tokens": 1, "user": NAME}
            reply = await client.post("/v1/completions", json=body)
            assert reply.status_code == 200, reply.text
            assert (await client.post("/v1/completions", json=body | {"max_tokens": -1})).status_code == 400
            stream = await client.post("/v1/completions", json=body | {"stream": True})
            assert stream.text.endswith("data: [DONE]\n\n")
            flag = await client.post("/ofrep/v1/evaluate/flags/support-tone", json={"context": {"targetingKey": NAME}})
            assert flag.status_code == 200
            votes: list[dict[str, Any]] = [
                {"completion_id": reply.json()["id"], "id": f"{gateway.port} by {NAME}", "comment": f"{NAME} liked it"},
                {"unit": NAME, "occurred_at": time.time()},
            ]
            for each in votes:
                voted = await client.post("/v1/feedback", json={"metric": "paid", "value": 3} | each)
                assert voted.status_code == 200, voted.text
            assert (await client.get("/v1/feedback", params={"unit": NAME})).json()["data"]

    async def is_known() -> bool:
        return int(await conn.fetchval(_OF_UNIT, digest)) >= 9 and not await conn.fetchval(_WAITING)

    await until(is_known, "the unit's requests and votes are not counted")
    async with httpx.AsyncClient(base_url=fleet.gateways[0].url, headers=fleet.operator, timeout=PATIENCE_S) as admin:
        preview = await admin.post(f"{project}/experiments/preview", json={"experiment_id": made.id, "unit": NAME})
        assert preview.status_code == 200, preview.text
        before = await all_published_output(fleet, admin, f"{project}/experiments/{made.id}", tmp_path)
        reply = await admin.post(f"{project}/experiment_units/forget", json={"unit": NAME})
        assert (reply.status_code, reply.json()["experiments"]) == (200, 1)
        after = await all_published_output(fleet, admin, f"{project}/experiments/{made.id}", tmp_path)
    files = {str(path): path.read_bytes() for path in fleet.settings.data_dir.rglob("*") if path.is_file()}
    assert any("journal" in path for path in files) and any(path.endswith(".log") for path in files)
    for shown in (before, after, files):
        found = [(where, form) for where, content in shown.items() for form in forms_of(NAME) if form in content]
        assert not found
    in_digest = [digest, digest.hex().encode(), base64.b64encode(digest)]

    def with_digest(shown: dict[str, bytes]) -> set[str]:
        return {where for where, content in shown.items() if any(form in content for form in in_digest)}

    assert {"tables", "dump", "exposures.csv", "outcomes.csv", "feedback.csv"} <= with_digest(before)
    assert with_digest(after) == set()
    logs = {where: content for where, content in files.items() if where.endswith(".log")}
    assert with_digest(logs) == set()
    for number in range(NUM_GATEWAYS):
        written = logs[str(fleet.gateways[number].log)]
        assert b"feature_flag.context.id" in written and log_id(digest).encode() in written
        assert b"gen_ai.evaluation.name" in written


def plain_dump(dsn: str, path: Path) -> bytes:
    """Return the plain SQL dump of a database by `pg_dump`."""
    dump._run("pg_dump", dsn, ["--format=plain", f"--file={path}"])
    return path.read_bytes()


async def all_published_output(fleet: Fleet, admin: httpx.AsyncClient, path: str, folder: Path) -> dict[str, bytes]:
    """Return all output of an installation about an experiment and itself, all its rows, and an SQL dump, by name."""
    shown = {"dump": await asyncio.to_thread(plain_dump, fleet.dsn, folder / "dump.sql")}
    for kind, suffix in EXPORTS:
        reply = await admin.get(f"{path}/exports", params={"kind": kind, "format": suffix})
        assert reply.status_code == 200, reply.text
        archive = zipfile.ZipFile(io.BytesIO(reply.content))
        shown[f"{kind}.{suffix}"] = b"".join(archive.read(name) for name in archive.namelist())
    for what in ("results", "health", "timeline", "exposures"):
        shown[what] = (await admin.get(f"{path}/{what}")).content
    shown["audit log"] = (await admin.get("/v1/organization/audit_logs", params={"limit": 100})).content
    for number, gateway in enumerate(fleet.gateways):
        shown[f"metrics {number}"] = (await asyncio.to_thread(gateway.metrics)).encode()
    async with await Database.connect(fleet.dsn, max_size=1) as database:
        shown["tables"] = (await all_rows_as_text(database)).encode()
    return shown
