"""However many bad adapters a project sends, and to however many gateways, few are inspected; no other project
waits, and a good adapter ends the pause."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from adapters.errors import AdapterRejected
from adapters.inspection import NICENESS, NICENESS_OF_SUSPECTS, BaseShape, Bounds, Report, inspect
from gateway.adapters.cooldown import FIRST_PAUSE_S, MAX_PAUSE_S, NUM_FREE, pause_left_s
from gateway.db.adapters.adapter_imports import claim_fetch
from gateway.db.adapters.refused_adapters import Refusals
from gateway.db.pool import Database
from gateway.domain.errors import InvalidRequest
from tests.gateway.admin.adapter_uploads import archive_of, error_of, upload
from tests.gateway.admin_server import AdminServer, GoodEngines, serve_admin, write_adapter
from tests.patience import PATIENCE_S

PAUSED = (429, None, "adapter_uploads_paused")
REJECTED = (400, "file", "adapter_rejected")
FLOOD = 50
BAD = "bad"


class Inspections:
    """A fake inspection that refuses adapters of rank one as bad.

    num: the number of inspections that have begun, by rank: 1 for bad adapters, 2 for good ones.
    """

    def __init__(self) -> None:
        self.num: Counter[int] = Counter()
        self.nicenesses: list[int] = []
        self.num_at_once = self.most_at_once = 0
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def until_begun(self, num: int) -> None:
        """Wait until `num` inspections of bad adapters have begun."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if self.num[1] >= num:
                    return
                await asyncio.sleep(0.01)

    async def __call__(self, path: Path, into: Path, base: BaseShape, bounds: Bounds, *, niceness: int) -> Report:
        is_bad = b'"r":1,' in await asyncio.to_thread((path / "adapter_config.json").read_bytes)
        self.num[1 if is_bad else 2] += 1
        self.nicenesses.append(niceness)
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        try:
            await self.may_end.wait()
            await asyncio.sleep(0.01)  # so that others could begin beside it
            if is_bad:
                raise AdapterRejected(["it is bad"])
            return await inspect(path, into, base, bounds, niceness=niceness)
        finally:
            self.num_at_once -= 1


class Site:
    """Two gateways over one database, each on a machine of its own."""

    def __init__(self, database: Database, servers: list[AdminServer], operators: list[httpx.AsyncClient]) -> None:
        self.database = database
        self.servers = servers
        self.operators = operators
        self.operator = operators[0]

    async def project(self, name: str) -> str:
        return f"/projects/{(await self.operator.post('/projects', json={'name': name})).json()['id']}"

    async def later(self, seconds: float) -> None:
        """Move the times in the rows of imports back, as if these seconds had passed."""
        async with self.database.acquire() as conn:
            await conn.execute(
                "UPDATE adapter_imports SET updated_at = updated_at - $1 * interval '1 second', "
                "wait_until = wait_until - $1 * interval '1 second'",
                seconds,
            )

    async def until_uploaded(self, project: str, num: int) -> None:
        """Wait until `num` of the project's imports are uploaded: they wait for an inspection or are inspected."""
        while True:
            if (await self.states(project))["uploaded"] >= num:
                return
            await asyncio.sleep(0.01)

    async def states(self, project: str) -> Counter[str]:
        listed = (await self.operator.get(f"{project}/adapter_imports", params={"limit": 100})).json()
        return Counter(each["state"] for each in listed["data"])


@pytest.fixture
def inspections() -> Inspections:
    return Inspections()


@pytest.fixture
async def site(database: Database, inspections: Inspections, tmp_path: Path) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        servers, operators = [], []
        for name in ("one", "two"):
            server = await stack.enter_async_context(serve_admin(database, tmp_path / name, inspect=inspections))
            servers.append(server)
            operators.append(await stack.enter_async_context(server.client(server.operator_key)))
        yield Site(database, servers, operators)


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / BAD, rank=1)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "good", rank=2)


async def upload_refused_adapters(site: Site, project: str, bad: Path, num: int = NUM_FREE) -> None:
    for _ in range(num):
        assert error_of(await upload(site.operator, project, BAD, bad)) == REJECTED


async def test_a_project_with_a_refused_adapter_is_inspected_at_low_priority_until_an_adapter_is_accepted(
    site: Site, inspections: Inspections, bad: Path, good: Path
) -> None:
    acme = await site.project("acme")
    await upload_refused_adapters(site, acme, bad, 2)
    for folder in (good, bad):
        await upload(site.operator, acme, "another", folder)
    usual, suspect = NICENESS, NICENESS_OF_SUSPECTS
    assert inspections.nicenesses == [usual, suspect, suspect, usual]


async def test_few_adapters_of_a_flood_are_inspected_and_another_tenant_waits_for_one_inspection(
    site: Site, inspections: Inspections, bad: Path, good: Path
) -> None:
    acme, globex = await site.project("acme"), await site.project("globex")
    inspections.may_end.clear()
    flood = [asyncio.create_task(upload(site.operators[n % 2], acme, BAD, bad)) for n in range(FLOOD)]
    async with asyncio.timeout(PATIENCE_S):
        await inspections.until_begun(1)
        theirs = asyncio.create_task(upload(site.operator, globex, "fine", good))
        inspections.may_end.set()
        assert (await theirs).status_code == 200
        replies = await asyncio.gather(*flood)
    outcomes = Counter(error_of(reply)[2] for reply in replies)
    assert inspections.num[1] == outcomes["adapter_rejected"] == NUM_FREE
    assert set(outcomes) <= {"adapter_rejected", "adapter_uploads_paused", "too_many_imports"}
    paused = [reply for reply in replies if error_of(reply) == PAUSED]
    assert all(0 < float(reply.headers["retry-after"]) <= FIRST_PAUSE_S for reply in paused)
    again = await asyncio.gather(*(upload(operator, acme, BAD, bad) for operator in site.operators * 10))
    assert {error_of(reply) for reply in again} == {PAUSED}
    assert inspections.num[1] == NUM_FREE
    assert inspections.most_at_once <= len(site.servers), "one on each machine"


async def test_after_the_pause_one_adapter_is_inspected_and_the_next_pause_is_longer(
    site: Site, inspections: Inspections, bad: Path
) -> None:
    acme = await site.project("acme")
    await upload_refused_adapters(site, acme, bad)
    pause_s = FIRST_PAUSE_S
    for num in range(1, 4):
        await site.later(pause_s / 2)
        early = await upload(site.operator, acme, BAD, bad)
        assert error_of(early) == PAUSED
        assert 0 < float(early.headers["retry-after"]) <= pause_s / 2
        await site.later(pause_s / 2)
        replies = await asyncio.gather(*(upload(operator, acme, BAD, bad) for operator in site.operators * 3))
        assert Counter(map(error_of, replies)) == {REJECTED: 1, PAUSED: 5}
        assert inspections.num[1] == NUM_FREE + num
        pause_s *= 2


async def test_an_accepted_adapter_ends_the_pauses(site: Site, inspections: Inspections, bad: Path, good: Path) -> None:
    acme = await site.project("acme")
    await upload_refused_adapters(site, acme, bad)
    await site.later(FIRST_PAUSE_S)
    assert (await upload(site.operator, acme, "fine", good)).status_code == 200
    await upload_refused_adapters(site, acme, bad)
    assert error_of(await upload(site.operator, acme, "fine", good)) == PAUSED


async def test_adapters_that_an_engine_refuses_or_that_are_canceled_during_inspection_count_as_refused(
    site: Site, inspections: Inspections, bad: Path, tmp_path: Path
) -> None:
    acme = await site.project("acme")
    engines: GoodEngines = site.servers[0].engines
    engines.answers = [InvalidRequest("The engine refuses it.")]
    reply = await upload(site.operator, acme, "unfit", write_adapter(tmp_path / "unfit", seed=1))
    assert error_of(reply)[2] == "adapter_rejected"
    for _ in range(NUM_FREE - 1):
        inspections.may_end.clear()
        num_begun = inspections.num[1]
        running = asyncio.create_task(upload(site.operator, acme, BAD, bad))
        await inspections.until_begun(num_begun + 1)
        newest = (await site.operator.get(f"{acme}/adapter_imports", params={"limit": 1})).json()["data"][0]
        assert (await site.operator.delete(f"{acme}/adapter_imports/{newest['id']}")).status_code == 200
        inspections.may_end.set()
        await running
    assert error_of(await upload(site.operator, acme, BAD, bad)) == PAUSED


async def test_every_way_of_uploading_is_paused_before_its_body_is_read(site: Site, bad: Path) -> None:
    acme = await site.project("acme")
    begun = (await site.operator.post(f"{acme}/adapter_imports", json={"name": "a", "size_bytes": 9})).json()
    await upload_refused_adapters(site, acme, bad)
    imports, source = f"{acme}/adapter_imports", {"name": "a", "source": "https://models.example.com/a.tar"}
    piece = site.operator.patch(f"{imports}/{begun['id']}", content=b"x", headers={"upload-offset": "0"})
    for asked in (
        site.operator.post(imports, json={"name": "a", "size_bytes": 9}),
        site.operator.post(f"{acme}/adapters", json=source),
        piece,
    ):
        assert error_of(await asked) == PAUSED
    assert (await site.operator.get(f"{imports}/{begun['id']}")).json()["received_bytes"] == 0
    assert await site.states(acme) == {"rejected": NUM_FREE, "receiving": 1}
    head = f"POST /v1/organization{acme}/adapters HTTP/1.1\r\nhost: x\r\ncontent-length: 10000000\r\n"
    head += f"content-type: multipart/form-data; boundary=x\r\nauthorization: Bearer {site.servers[0].operator_key}"
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", urlsplit(site.servers[0].url).port, family=socket.AF_INET
    )
    try:
        writer.write(f"{head}\r\n\r\n".encode())
        async with asyncio.timeout(PATIENCE_S):
            assert b" 429 " in await reader.readline(), "answered without a byte of the body"
    finally:
        writer.close()


async def test_an_upload_in_pieces_is_kept_and_completed_after_the_pause(
    site: Site, inspections: Inspections, bad: Path, good: Path
) -> None:
    """The first completion is requested before the pause begins, and waits for its inspection when the pause begins."""
    archive = archive_of(good)
    acme = await site.project("acme")
    wanted = {"name": "a", "size_bytes": len(archive)}
    begun = (await site.operator.post(f"{acme}/adapter_imports", json=wanted)).json()
    path = f"{acme}/adapter_imports/{begun['id']}"
    await site.operator.patch(path, content=archive, headers={"upload-offset": "0"})
    await upload_refused_adapters(site, acme, bad, NUM_FREE - 1)
    inspections.may_end.clear()
    last = asyncio.create_task(upload(site.operator, acme, BAD, bad))
    async with asyncio.timeout(PATIENCE_S):
        await inspections.until_begun(NUM_FREE)  # before the other one stands in line
        late = asyncio.create_task(site.operator.post(f"{path}/complete", json={}))
        await site.until_uploaded(acme, 2)
        inspections.may_end.set()
        assert error_of(await last) == REJECTED
        assert error_of(await late) == PAUSED
    assert error_of(await site.operator.post(f"{path}/complete", json={})) == PAUSED
    kept = (await site.operator.get(path)).json()
    assert (kept["state"], kept["received_bytes"]) == ("receiving", begun["size_bytes"])
    assert inspections.num == {1: NUM_FREE}


async def test_an_adapter_to_be_downloaded_waits_for_the_end_of_the_pause(site: Site, bad: Path) -> None:
    acme = await site.project("acme")
    source = {"name": "a", "source": "https://models.example.com/a.tar"}
    assert (await site.operator.post(f"{acme}/adapters", json=source)).status_code == 202
    async with site.database.acquire() as conn:
        claimed = await claim_fetch(conn)
        assert claimed is not None
        await conn.execute("UPDATE adapter_imports SET wait_until = now() + interval '9 seconds', num_claims = 0")
        assert await claim_fetch(conn) is None
    await site.later(9.0)
    async with site.database.acquire() as conn:
        found = await claim_fetch(conn)
    assert found is not None and found.id == claimed.id


def test_pauses_grow_to_a_bound_and_pass() -> None:
    assert [pause_left_s(Refusals(num, 0.0)) for num in range(NUM_FREE + 2)] == [0.0] * NUM_FREE + [10.0, 20.0]
    assert pause_left_s(Refusals(10**6, 0.0)) == MAX_PAUSE_S
    assert (pause_left_s(Refusals(NUM_FREE, 9.5)), pause_left_s(Refusals(NUM_FREE, 11.0))) == (0.5, 0.0)
