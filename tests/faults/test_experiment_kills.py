"""The arm in the header is the arm in the ledger, by its adapter's digest and by what the text says, whoever is killed;
units and costs of each arm are those of the ledger, in every integer.

Two gateways in processes of their own and the fake engine, whose text tells which adapter gave it, are killed and
started anew while versions are promoted. A seed is a round with tenants of its own. `make long-experiments` runs 100
rounds of 1,000 requests and 10 kills; `FIRST_SEED=k` begins with round k, `NUM_ROUNDS=n` runs n rounds.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import asyncpg
import httpx
import msgspec
import pytest

from gateway.content.keys import content_keys
from gateway.db.experiments.units import page_of_units
from gateway.db.pool import Database
from gateway.domain.experiments.assignment import assign, unit_digest
from gateway.experiments.keys import ProjectKeys
from gateway.experiments.recount import verify
from gateway.settings import Settings
from gateway.support.cipher import Cipher
from tests.faults.processes import Engine, Gateway
from tests.gateway.bases import put_adapter
from tests.gateway.experiments.making import ArmOf, StartedExperiment, start_experiment
from tests.gateway.limits.fleet import set_prices
from tests.gateway.live import BASE, make_operator_key
from tests.gateway.model_folder import make_model_folder
from tests.installation.tenants import Key, make_key
from tests.patience import PATIENCE_S

SIZE, FULL_SIZE = (400, 4), (1_000, 10)
"""Requests and kills of a round."""
FULL_ROUNDS = 100
NUM_CLIENTS = 16
NUM_UNITS = 200
PROMOTE_EVERY_S = 0.5
ARMS = (ArmOf("control", "a0", 1, 2), ArmOf("warm", "a0", 2), ArmOf("cold", "a1", 1))
VERSIONS = {"a0": 3, "a1": 2}
PROMPT = list(range(40, 56))
"""The tokens of a prompt whose texts all differ, so that an answer shows by how much an adapter rotated it."""


class Site(msgspec.Struct, frozen=True):
    dsn: str
    settings: Settings
    gateways: list[Gateway]
    engine: Engine
    operator: dict[str, str]


class Answer(msgspec.Struct, frozen=True):
    """The request id, unit and arm of one reply."""

    request_id: str
    unit: str
    arm: int


class Tenant(msgspec.Struct, frozen=True):
    """A project with an experiment."""

    key: Key
    made: StartedExperiment
    says: dict[tuple[str, int], str]
    """The text that each adapter and version answers with."""

    def request(self, unit: str, *, is_stream: bool) -> bytes:
        body: dict[str, Any] = {"model": "support-bot", "prompt": PROMPT, "max_tokens": 2, "user": unit}
        return post("/v1/completions", self.key, body | ({"stream": True} if is_stream else {}))

    def checked(self, unit: str, head: dict[str, str], text: str) -> Answer:
        """Check that header, adapter and text belong to the arm that the unit has; return the answer."""
        at = assign(self.made.split, unit, b"").arm
        arm = ARMS[at]
        assert head["x-lorikeet-experiment"] == f'"support-tone";v=1;arm="{arm.name}";reason=split', (unit, head)
        assert head["x-lorikeet-adapter"] == f"{arm.adapter}@{arm.version}", (unit, head)
        assert arm.adapter is not None and text == self.says[arm.adapter, arm.version], (unit, text)
        return Answer(head["x-request-id"], unit, at)


@pytest.fixture(scope="module")
def site(module_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("arms")
    model_dir = make_model_folder(folder / "model")
    settings = Settings(data_dir=folder, model=str(model_dir), model_name=BASE)
    settings.run_dir.mkdir(parents=True)
    asyncio.run(set_prices(module_dsn))
    operator = {"authorization": f"Bearer {asyncio.run(make_operator_key(module_dsn))}"}
    with ExitStack() as stack:
        engine = Engine(settings.engine.endpoint, model_dir, log=folder / "engine.log")
        stack.callback(engine.kill)
        engine.start()
        gateways = [Gateway(settings, module_dsn, number) for number in range(2)]
        for gateway in gateways:
            stack.callback(gateway.close)
            gateway.start()
        for gateway in gateways:
            gateway.wait_ready()
        yield Site(module_dsn, settings, gateways, engine, operator)


async def test_arms_units_and_costs_are_those_of_the_ledger_whoever_is_killed(site: Site, full: bool) -> None:
    first = int(os.environ.get("FIRST_SEED", "0"))
    num_rounds = int(os.environ.get("NUM_ROUNDS", str(FULL_ROUNDS))) if full else 1
    for seed in range(first, first + num_rounds):
        began_s = time.monotonic()
        rng, outcomes = random.Random(seed), Counter[str]()
        tenants = [await make(site, f"arms-{seed}-{number}", rng) for number in range(2)]
        answers = await run(site, tenants, rng, outcomes, *(FULL_SIZE if full else SIZE))
        asked_s = time.monotonic() - began_s
        num_units = sum([await check(site, tenant, answers[at]) for at, tenant in enumerate(tenants)])
        took_s = time.monotonic() - began_s
        print(f"seed {seed}: {dict(outcomes)}, {num_units} units, {asked_s:.1f} s, {took_s:.1f} s checked", flush=True)


async def make(site: Site, name: str, rng: random.Random) -> Tenant:
    """Make a project with adapters whose versions all answer differently, and a running experiment."""
    key, says = await make_key(site.dsn, name), {}
    rotations = iter(rng.sample(range(1, len(PROMPT)), sum(VERSIONS.values())))
    conn = await asyncpg.connect(site.dsn)
    try:
        for adapter, num_versions in VERSIONS.items():
            for version in range(1, num_versions + 1):
                digest = f"{next(rotations):08x}".ljust(64, "abcdef"[rng.randrange(6)])
                await put_adapter(conn, key.project_id, adapter, digest=digest, rank=8, size_bytes=1)
                body = {"model": f"{BASE}:{adapter}@{version}", "prompt": PROMPT, "max_tokens": 2}
                url = f"{site.gateways[0].url}/v1/completions"
                async with httpx.AsyncClient(headers=key.headers, timeout=PATIENCE_S) as client:
                    while (reply := await client.post(url, json=body)).status_code in (404, 503):  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                says[adapter, version] = reply.json()["choices"][0]["text"]
        assert len(set(says.values())) == len(says)
        return Tenant(key, await start_experiment(conn, key.project_id, ARMS, pool=BASE), says)
    finally:
        await conn.close()


async def run(
    site: Site, tenants: list[Tenant], rng: random.Random, outcomes: Counter[str], num_requests: int, num_kills: int
) -> list[list[Answer]]:
    """Let clients send requests until `num_requests` are answered, with kills spread over that time; return the answers
    of each tenant."""
    left, answers = itertools.count(), [list[Answer]() for _ in tenants]
    over = asyncio.Event()

    async def client(seed: float) -> None:
        own, connections = random.Random(seed), [Connection(gateway.port) for gateway in site.gateways]
        while next(left) < num_requests:
            at, unit, is_stream = own.randrange(len(tenants)), f"user-{own.randrange(NUM_UNITS)}", own.random() < 0.3
            request = tenants[at].request(unit, is_stream=is_stream)
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        head, body = await own.choice(connections).ask(request)
                    except (OSError, EOFError):
                        outcomes["lost"] += 1
                        continue
                    text = text_of(body, is_stream=is_stream) if head["status"] == "200" else None
                    if text is not None:
                        answers[at].append(tenants[at].checked(unit, head, text))
                        break
                    assert head["status"] in ("200", "503", "500", "502"), (head, body)
                    outcomes[head["status"]] += 1
                    await asyncio.sleep(0.02)
        for connection in connections:
            connection.close()

    async def kill() -> None:
        for number in range(num_kills):
            while sum(map(len, answers)) < num_requests * (number + 1) / (num_kills + 1):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            await asyncio.to_thread(fault, site, number, rng)
            outcomes["kills"] += 1

    promoting = asyncio.create_task(keep_promoting(site, tenants, over, outcomes))
    try:
        await asyncio.gather(kill(), *(client(rng.random()) for _ in range(NUM_CLIENTS)))
    finally:
        over.set()
        await promoting
    assert sum(map(len, answers)) == num_requests and outcomes["promoted"] and outcomes["kills"] == num_kills
    outcomes["answered"] = num_requests
    return answers


def fault(site: Site, number: int, rng: random.Random) -> None:
    """Kill a gateway, the engine, or both; every third fault stops a gateway in order instead."""
    gateway = rng.choice(site.gateways)
    if number % 3 == 2:
        assert gateway.terminate() == 0
    elif number % 3 == 0:
        gateway.kill()
    if number % 3 == 1 or rng.random() < 0.2:
        site.engine.restart()
    gateway.kill()
    gateway.start()


async def keep_promoting(site: Site, tenants: list[Tenant], over: asyncio.Event, outcomes: Counter[str]) -> None:
    """Promote one version after the other, which must not change what any arm answers."""
    async with httpx.AsyncClient(headers=site.operator, timeout=PATIENCE_S) as admin:
        for number in itertools.count():
            for tenant, (adapter, num_versions) in itertools.product(tenants, VERSIONS.items()):
                path = f"/v1/organization/projects/{tenant.key.project_id}/adapters/{adapter}/versions"
                for gateway in itertools.cycle(site.gateways):
                    try:
                        reply = await admin.post(f"{gateway.url}{path}/{1 + number % num_versions}/promote")
                    except httpx.TransportError:
                        continue
                    if reply.status_code < 500:
                        assert reply.status_code == 200, reply.text
                        outcomes["promoted"] += 1
                        break
            try:
                await asyncio.wait_for(over.wait(), PROMOTE_EVERY_S)
                return
            except TimeoutError:
                continue


_LEFT = """
    SELECT (SELECT count(*) FROM experiment_events WHERE experiment_id = $1)
         + (SELECT count(*) FROM unnest($2::text[]) AS a (id) WHERE NOT EXISTS (
                SELECT FROM ledger l WHERE l.request_id = a.id AND l.experiment_id = $1))
         + (SELECT count(*) FROM experiment_requests r WHERE r.experiment_id = $1 AND r.num_refused = 0
                AND NOT EXISTS (SELECT FROM ledger l WHERE l.request_id = r.request_id))
"""
_LEDGER = """
    SELECT l.request_id, l.experiment_arm, l.experiment_epoch, l.adapter_version, l.adapter_digest, r.digest, r.arm
    FROM ledger l JOIN experiment_requests r USING (request_id)
    WHERE l.experiment_id = $1 AND l.revision = 0 AND l.finish_reason <> 'superseded'
"""
_COSTS = "SELECT experiment_arm, sum(cost_nanos)::bigint FROM ledger WHERE experiment_id = $1 GROUP BY 1"
_OF_PROJECT = "SELECT sum(cost_nanos)::bigint FROM ledger WHERE project_id = $1 AND experiment_id IS NOT NULL"
_EXPOSED = "SELECT DISTINCT digest FROM experiment_requests WHERE experiment_id = $1"
_DIGESTS = """
    SELECT a.name, v.version, v.digest FROM adapters a JOIN adapter_versions v ON v.adapter_id = a.id
    WHERE a.project_id = $1
"""


async def check(site: Site, tenant: Tenant, answers: list[Answer]) -> int:
    """Check that ledger, units and sums agree with all replies; return the number of units."""
    for gateway in site.gateways:
        await asyncio.to_thread(gateway.wait_ready)
    made = tenant.made
    async with await Database.connect(site.dsn, max_size=2) as database, database.acquire() as conn:
        async with asyncio.timeout(PATIENCE_S):
            while await conn.fetchval(_LEFT, made.id, [each.request_id for each in answers]):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        cipher = Cipher(content_keys(None, site.settings.content_key_path))
        key = await ProjectKeys(database, cipher).key(tenant.key.project_id)
        digests = {
            (name, version): digest for name, version, digest in await conn.fetch(_DIGESTS, tenant.key.project_id)
        }
        rows = {row["request_id"]: row for row in await conn.fetch(_LEDGER, made.id)}
        for each in answers:
            arm, row = ARMS[each.arm], rows[each.request_id]
            assert (row["experiment_arm"], row["experiment_epoch"], row["arm"]) == (each.arm, 1, each.arm)
            assert (row["adapter_version"], row["adapter_digest"]) == (arm.version, digests[arm.adapter, arm.version])
            assert row["digest"] == unit_digest(key, each.unit)
        exposed = {row["digest"] for row in await conn.fetch(_EXPOSED, made.id)}
        units = await page_of_units(conn, made.id, b"", 10 * NUM_UNITS)
        assert {digest for _, digest in units} == exposed == {row["digest"] for row in rows.values()}
        costs: Counter[int] = Counter()
        for unit in units.values():
            assert unit.state is not None
            costs[unit.state.arm] += unit.state.counts.cost_nanos
        assert costs == dict(await conn.fetch(_COSTS, made.id))
        assert costs.total() == await conn.fetchval(_OF_PROJECT, tenant.key.project_id) > 0
        found = await verify(conn, made.id)
        assert (found.differences, found.num_recounted) == ((), len(units))
    return len(units)


class Connection:
    """An HTTP connection with little overhead, for one request at a time, which reconnects after it was lost."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[dict[str, str], bytes]:
        """Send a request; return the head, by lower-case names and `status`, and the body.

        Raises OSError or EOFError: when the connection is lost.
        """
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            writer.write(request)
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            fields = (line.partition(": ") for line in lines[1:] if line)
            head = {name.lower(): value for name, _, value in fields} | {"status": lines[0].split()[1]}
            if "content-length" in head:
                return head, await reader.readexactly(int(head["content-length"]))
            body = bytearray()
            while size := int(await reader.readline() or "", 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readline()
            return head, bytes(body)
        except (OSError, EOFError, ValueError) as error:
            self.close()
            raise EOFError from error

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def post(path: str, key: Key, body: dict[str, Any]) -> bytes:
    """Return the bytes of a POST request."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {key.secret}\r\ncontent-length: {len(data)}"
    return f"{head}\r\ncontent-type: application/json\r\n\r\n".encode() + data


def text_of(body: bytes, *, is_stream: bool) -> str | None:
    """Return the text of a completion; None where a stream broke off before its last event."""
    if not is_stream:
        return str(json.loads(body)["choices"][0]["text"])
    events = [line.removeprefix(b"data: ") for line in body.splitlines() if line.startswith(b"data: ")]
    if events[-1:] != [b"[DONE]"] or any(b'"error"' in event for event in events):
        return None
    return "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])
