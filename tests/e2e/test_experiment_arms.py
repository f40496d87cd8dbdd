"""The arm in the header is the arm in the ledger, by the adapter's digest and by the text: no request differs.

The same units ask the experiments of two tenants over two gateways, while versions are promoted, gateways and engines
are killed, and everything is restarted. The arms are adapters that identify themselves.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import msgspec

from gateway.content.keys import content_keys
from gateway.db.pool import Database
from gateway.domain.experiments.assignment import assign, unit_digest
from gateway.experiments.keys import ProjectKeys
from gateway.postgres.embedded import running_dsn
from gateway.support.cipher import Cipher
from tests.e2e.conftest import SIGNS
from tests.e2e.installation import Installation
from tests.e2e.signatures.model import Signature, write_signature
from tests.e2e.signatures.tenants import FILES, signatures
from tests.e2e.test_usage_survives import gateway_pid
from tests.gateway.experiments.making import ArmOf, StartedExperiment, start_experiment
from tests.patience import PATIENCE_S

NUM_REQUESTS, NUM_REQUESTS_FULL = 200, 5_000
NUM_CLIENTS = 8
NUM_UNITS = 150
NUM_TROUBLES, NUM_TROUBLES_FULL = 2, 60
PROMOTE_EVERY_S = 0.5
ARMS = (ArmOf("control", "a0", 1, 2), ArmOf("warm", "a0", 2), ArmOf("cold", "a1", 1))
VERSIONS = {"a0": 3, "a1": 2}
"""The number of each adapter's versions. The current version changes all the time; arms stay the same."""

HEADER = "x-lorikeet-experiment"


class AnsweredRequest(msgspec.Struct, frozen=True):
    """The request id, tenant, unit and arm of one answered request."""

    request_id: str
    tenant: str
    unit: str
    arm: int


class Tenant(msgspec.Struct, frozen=True):
    """A project whose experiment's arms identify themselves."""

    project_id: str
    key: str
    says: dict[tuple[str, int], str]
    """The characters of each text, by adapter and version."""
    made: StartedExperiment

    def check(self, unit: str, reply: httpx.Response, text: str) -> AnsweredRequest:
        """Check that header, adapter and text are of the arm that the unit has."""
        at = assign(self.made.split, unit, b"").arm
        arm = ARMS[at]
        assert reply.headers[HEADER] == f'"support-tone";v=1;arm="{arm.name}";reason=split', (unit, reply.headers)
        assert reply.headers["x-lorikeet-adapter"] == f"{arm.adapter}@{arm.version}", (unit, reply.headers)
        assert arm.adapter is not None and set(text) == {self.says[arm.adapter, arm.version]}, (unit, text)
        return AnsweredRequest(reply.headers["x-request-id"], self.project_id, unit, at)


async def test_the_recorded_arm_is_the_served_arm(signs: Installation, tmp_path: Path, full: bool) -> None:
    installation = signs
    rng = random.Random(int(os.environ.get("FIRST_SEED", "0")))
    num_requests = NUM_REQUESTS_FULL if full else NUM_REQUESTS
    num_troubles = NUM_TROUBLES_FULL if full else NUM_TROUBLES
    operator = {"authorization": f"Bearer {(installation.data_dir / 'operator.key').read_text().strip()}"}
    async with (
        httpx.AsyncClient(base_url=installation.url, timeout=PATIENCE_S, trust_env=False) as http,
        httpx.AsyncClient(base_url=installation.url, headers=operator, timeout=PATIENCE_S, trust_env=False) as admin,
    ):
        says = (signature for signature in _distinct(signatures(rng)))
        tenants = [await _tenant(installation, admin, tmp_path / str(number), says) for number in range(2)]
        left, answered, outcomes = itertools.count(), list[AnsweredRequest](), Counter[str]()
        over = asyncio.Event()
        changing = asyncio.create_task(_keep_promoting(admin, tenants, over, outcomes))
        clients = [
            _client(http, tenants, random.Random(f"{rng.random()}"), left, num_requests, answered, outcomes)
            for _ in range(NUM_CLIENTS)
        ]
        try:
            await asyncio.gather(_trouble(installation, answered, num_requests, num_troubles, outcomes), *clients)
        finally:
            over.set()
            await changing
    print(f"{len(answered)} answered, {dict(outcomes)}")
    assert len(answered) == num_requests
    assert outcomes["promoted"] > 0 and outcomes["trouble"] == num_troubles
    await _check_ledger(installation, tenants, answered)


def _distinct(fresh: Iterator[Signature]) -> Iterator[Signature]:
    """Yield signatures that begin differently, so that a text tells its adapter."""
    seen: set[str] = set()
    for signature in fresh:
        if signature[0] not in seen:
            seen.add(signature[0])
            yield signature


async def _tenant(
    installation: Installation, admin: httpx.AsyncClient, folder: Path, fresh: Iterator[Signature]
) -> Tenant:
    """Make a project with its adapters and a running experiment."""
    made = await admin.post("/v1/organization/projects", json={"name": folder.name})
    project_id = made.json()["id"]
    path = f"/v1/organization/projects/{project_id}"
    key = (await admin.post(f"{path}/api_keys", json={"name": "key"})).json()["value"]
    model, says = Path(installation.env["LORIKEET_MODEL"]), {}
    for adapter, num_versions in VERSIONS.items():
        for version in range(1, num_versions + 1):
            signature = next(fresh)
            place = folder / f"{adapter}-{version}"
            await asyncio.to_thread(write_signature, model, signature, place)
            files = {name: (place / name).read_bytes() for name in FILES}
            reply = await _insist(
                lambda files=files, adapter=adapter: admin.post(f"{path}/adapters", data={"name": adapter}, files=files)
            )
            assert reply.json()["version_state"] == "ready", reply.text
            says[adapter, version] = signature[0]
    async with await _connect(installation) as database, database.acquire() as conn:
        started = await start_experiment(conn, project_id, ARMS, pool=SIGNS)
    return Tenant(project_id, key, says, started)


async def _insist(ask: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    """Send a request until a reply comes, and return it: a gateway may be away for a while or busy."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                reply = await ask()
            except httpx.TransportError:
                await asyncio.sleep(0.1)
                continue
            if reply.status_code < 500:
                assert reply.status_code < 300, reply.text
                return reply
            await asyncio.sleep(float(reply.headers.get("retry-after", "0.1")))


async def _keep_promoting(
    admin: httpx.AsyncClient, tenants: list[Tenant], over: asyncio.Event, outcomes: Counter[str]
) -> None:
    """Promote one version after the other, which must not change what any arm answers."""
    for number in itertools.count():
        for tenant in tenants:
            for adapter, num_versions in VERSIONS.items():
                version = 1 + number % num_versions
                path = f"/v1/organization/projects/{tenant.project_id}/adapters/{adapter}/versions/{version}/promote"
                await _insist(lambda path=path: admin.post(path))
                outcomes["promoted"] += 1
        try:
            await asyncio.wait_for(over.wait(), PROMOTE_EVERY_S)
            return
        except TimeoutError:
            continue


async def _client(
    http: httpx.AsyncClient,
    tenants: list[Tenant],
    rng: random.Random,
    left: Iterator[int],
    num_requests: int,
    answered: list[AnsweredRequest],
    outcomes: Counter[str],
) -> None:
    while next(left) < num_requests:
        tenant, unit = rng.choice(tenants), f"user-{rng.randrange(NUM_UNITS)}"
        ask = rng.choice([_chat, _completion, _stream])
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    reply, text = await ask(http, tenant.key, unit)
                except httpx.TransportError:
                    outcomes["lost"] += 1
                else:
                    if reply.status_code == 200 and text:
                        answered.append(tenant.check(unit, reply, text))
                        break
                    assert reply.status_code >= 500 or not text, reply.text
                    outcomes[str(reply.status_code)] += 1
                await asyncio.sleep(0.05)


_BODY: dict[str, Any] = {"model": "support-bot", "max_tokens": 2, "temperature": 0}

Shown = tuple[httpx.Response, str]
"""The type of a reply with its text; "" where it failed."""


async def _chat(http: httpx.AsyncClient, key: str, unit: str) -> Shown:
    body = _BODY | {"messages": [{"role": "user", "content": "hello"}], "user": unit}
    reply = await http.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
    return reply, reply.json()["choices"][0]["message"]["content"] if reply.status_code == 200 else ""


async def _completion(http: httpx.AsyncClient, key: str, unit: str) -> Shown:
    body = _BODY | {"prompt": "hello", "user": unit}
    reply = await http.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})
    return reply, reply.json()["choices"][0]["text"] if reply.status_code == 200 else ""


async def _stream(http: httpx.AsyncClient, key: str, unit: str) -> Shown:
    body = _BODY | {"prompt": "hello", "user": unit, "stream": True}
    reply = await http.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})
    events = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    if reply.status_code != 200 or events[-1:] != ["[DONE]"]:
        return reply, ""
    chunks: list[dict[str, Any]] = [json.loads(event) for event in events[:-1]]
    return reply, "".join(chunk["choices"][0]["text"] for chunk in chunks)


async def _trouble(
    installation: Installation,
    answered: list[AnsweredRequest],
    num_requests: int,
    num_troubles: int,
    outcomes: Counter[str],
) -> None:
    """Cause faults as requests are answered: kill a gateway, restart everything and kill the engine, in turn."""
    troubles = itertools.cycle((_kill_gateway, _restart, _kill_engine))
    for number, trouble in zip(range(num_troubles), troubles, strict=False):
        while len(answered) < num_requests * (number + 1) / (num_troubles + 1):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)
        await asyncio.to_thread(trouble, installation)
        outcomes["trouble"] += 1


def _kill_gateway(installation: Installation) -> None:
    os.kill(gateway_pid(installation), signal.SIGKILL)


def _kill_engine(installation: Installation) -> None:
    os.kill(installation.engine_pid(), signal.SIGKILL)


def _restart(installation: Installation) -> None:
    assert installation.stop() == 0
    installation.start()


async def _connect(installation: Installation) -> Database:
    dsn = running_dsn(installation.data_dir)
    assert dsn is not None
    return await Database.connect(dsn)


async def _check_ledger(installation: Installation, tenants: list[Tenant], answered: list[AnsweredRequest]) -> None:
    """Check that the ledger, and its sums by unit, agree with all replies."""
    async with await _connect(installation) as database:
        cipher = Cipher(content_keys(None, installation.data_dir / "content.key"))
        keys = {each.project_id: await ProjectKeys(database, cipher).key(each.project_id) for each in tenants}
        async with database.acquire() as conn:
            rows = await _ledger(conn, [each.request_id for each in answered])
            digests = await _digests(conn)
            units = await conn.fetch("SELECT experiment_id, digest, epoch, arm FROM experiment_units")
    for each in answered:
        arm = ARMS[each.arm]
        row = rows[each.request_id]
        assert (row["experiment_arm"], row["experiment_epoch"], row["adapter_version"]) == (each.arm, 1, arm.version)
        assert row["adapter_digest"] == digests[each.tenant, arm.adapter, arm.version]
        assert row["digest"] == unit_digest(keys[each.tenant], each.unit)
        assert row["of_unit"] == (each.arm, 1)
    by_digest = {
        (tenant.made.id, unit_digest(keys[tenant.project_id], unit)): assign(tenant.made.split, unit, b"").arm
        for tenant in tenants
        for unit in (f"user-{number}" for number in range(NUM_UNITS))
    }
    assert {(row["experiment_id"], row["digest"]) for row in units} <= by_digest.keys()
    assert all(by_digest[row["experiment_id"], row["digest"]] == row["arm"] for row in units)


_LEDGER = """
    SELECT l.request_id, l.experiment_arm, l.experiment_epoch, l.adapter_version, l.adapter_digest, r.digest,
           (r.arm::integer, r.epoch::integer) AS of_unit
    FROM ledger l JOIN experiment_requests r USING (request_id)
    WHERE l.request_id = ANY ($1::text[]) AND l.revision = 0 AND l.finish_reason <> 'superseded'
"""


async def _ledger(conn: Any, request_ids: list[str]) -> dict[str, asyncpg.Record]:
    """Return the row of each request, once all have one."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            rows = {row["request_id"]: row for row in await conn.fetch(_LEDGER, request_ids)}
            if len(rows) == len(request_ids):
                return rows
            await asyncio.sleep(0.2)


_DIGESTS = """
    SELECT a.project_id, a.name, v.version, v.digest FROM adapters a JOIN adapter_versions v ON v.adapter_id = a.id
"""


async def _digests(conn: Any) -> dict[tuple[str, str, int], str]:
    """Return the digest of each version, by project, adapter and number."""
    rows = await conn.fetch(_DIGESTS)
    return {(row["project_id"], row["name"], row["version"]): row["digest"] for row in rows}
