"""An import is fetched in the background: by one gateway, by another if that one dies, by none once canceled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from adapters.store import AdapterStore
from gateway.adapters.cooldown import FIRST_PAUSE_S, NUM_FREE
from gateway.adapters.download import Downloader
from gateway.adapters.fetch import Fetcher, Hub
from gateway.adapters.importer import MAX_AT_WORK, Importer
from gateway.db.adapters.adapter_imports import (
    MAX_FETCHED,
    ImportRow,
    claim_fetch,
    create_import,
    end_import,
    find_import,
)
from gateway.db.organization.audit import Author
from gateway.db.organization.organizations import ensure_organization
from gateway.db.organization.projects import create_project
from gateway.db.pool import Database
from gateway.domain.adapters.sources import AllowedSources
from gateway.domain.errors import InvalidRequest
from tests.gateway.adapters.web import Web, answer, bytes_as_they_are, serving
from tests.patience import PATIENCE_S

MAX_BYTES = 1000
SLOW = bytes_as_they_are(
    b"HTTP/1.1 200 X\r\ncontent-length: 900\r\n\r\n" + b"x" * 300, b"x", pause_s=0.02, endless=True
)


class Intake:
    """A fake intake that accepts content once `may_end` is set, or refuses it.

    taken: the state of each import, and its content.
    """

    def __init__(self) -> None:
        self.taken: list[tuple[str, bytes]] = []
        self.refuses = False
        self.num_begun = 0
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def take_in(self, imported: ImportRow, content: Path) -> None:
        self.num_begun += 1
        await self.may_end.wait()
        self.taken.append((imported.state, await asyncio.to_thread(content.read_bytes)))
        if self.refuses:
            raise InvalidRequest("It is refused.", param="source", code="adapter_rejected")


class Bench:
    """A database with one project, a web server, and any number of importers."""

    def __init__(self, database: Database, web: Web, folder: Path, project_id: str) -> None:
        self.database = database
        self.web = web
        self._folder = folder / "store"
        self._store = AdapterStore(self._folder)
        self.intake = Intake()
        self._project_id = project_id

    @asynccontextmanager
    async def importing(self) -> AsyncIterator[None]:
        allowed = AllowedSources.parse(self.web.url("/"))
        fetcher = Fetcher(Downloader(self.web.guard, tls=self.web.tls), allowed, max_bytes=MAX_BYTES, hub=Hub())
        importer = Importer(self.database, fetcher, self.intake.take_in, self._store, poll_s=0.02)
        importer.start()
        try:
            yield
        finally:
            await importer.stop()

    async def ask(self, source: str, project_id: str | None = None) -> str:
        async with self.database.acquire() as conn:
            author = Author(
                organization_id="org", kind="api_key", id="key", email=None, address="1.1.1.1", request_id="req"
            )
            made = await create_import(
                conn,
                project_id or self._project_id,
                name="a",
                source=source,
                state="fetching",
                promote=True,
                author=author,
            )
        return made.id

    async def until(
        self, import_id: str, holds: Callable[[ImportRow], bool], project_id: str | None = None
    ) -> ImportRow:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                async with self.database.acquire() as conn:
                    row = await find_import(conn, project_id or self._project_id, import_id)
                assert row is not None
                if holds(row):
                    return row
                await asyncio.sleep(0.02)

    def files(self) -> list[Path]:
        return list(self._folder.iterdir())


@pytest.fixture
async def bench(database: Database, tmp_path: Path) -> AsyncIterator[Bench]:
    async with database.acquire() as conn:
        organization = await ensure_organization(conn, "default")
        project = await create_project(conn, organization.id, "acme")
        assert project is not None
    async with serving() as web:
        yield Bench(database, web, tmp_path, project.id)


async def test_an_import_is_fetched_once_however_many_gateways_look(bench: Bench) -> None:
    bench.web.pages["/a.tar"] = answer(200, b"content")
    async with bench.importing(), bench.importing():
        import_id = await bench.ask(bench.web.url("/a.tar"))
        row = await bench.until(import_id, lambda row: row.state != "fetching")
        await bench.until(import_id, lambda row: bool(bench.intake.taken))
    assert (row.state, row.received_bytes, row.size_bytes) == ("uploaded", 7, 7)
    assert bench.intake.taken == [("uploaded", b"content")]
    assert bench.files() == []


async def test_an_import_that_cannot_be_fetched_fails_with_its_reason(bench: Bench) -> None:
    bench.web.pages["/gone"] = answer(404)
    bench.web.pages["/large"] = answer(200, bytes(MAX_BYTES + 1))
    async with bench.importing():
        for source, reason in (
            (bench.web.url("/gone"), f"models.test:{bench.web.port} answered with status 404"),
            (
                bench.web.url("/large"),
                f"the adapter is larger than {MAX_BYTES} bytes, the most that LORIKEET_MAX_ADAPTER_BYTES allows",
            ),
            ("hf://org/repo", "the source is not among the sources that LORIKEET_ADAPTER_SOURCES allows"),
        ):
            row = await bench.until(await bench.ask(source), lambda row: row.state != "fetching")
            assert (row.state, row.reason) == ("failed", reason)
    assert bench.intake.taken == []


async def test_progress_shows_and_a_cancellation_ends_the_fetch(bench: Bench) -> None:
    bench.web.pages["/slow"] = SLOW
    async with bench.importing():
        import_id = await bench.ask(bench.web.url("/slow"))
        row = await bench.until(import_id, lambda row: row.received_bytes > 0)
        assert (row.state, row.size_bytes) == ("fetching", 900)
        async with bench.database.acquire() as conn:
            await end_import(conn, import_id, "failed", "canceled")
        await bench.until(import_id, lambda row: bench.files() == [])
        row = await bench.until(import_id, lambda row: True)
    assert (row.state, row.reason, bench.intake.taken) == ("failed", "canceled", [])


async def test_what_a_dead_gateway_left_is_fetched_by_another(bench: Bench) -> None:
    bench.web.pages["/a.tar"] = answer(200, b"content")
    import_id = await bench.ask(bench.web.url("/a.tar"))
    async with bench.database.acquire() as conn:
        assert await claim_fetch(conn) is not None
        assert await claim_fetch(conn) is None, "it is somebody's"
        await conn.execute("UPDATE adapter_imports SET updated_at = now() - interval '21 seconds'")
    async with bench.importing():
        await bench.until(import_id, lambda row: row.state == "uploaded")


async def test_nothing_is_fetched_for_a_project_that_is_paused_until_the_pause_is_over(bench: Bench) -> None:
    bench.web.pages["/a.tar"] = answer(200, b"content")
    async with bench.database.acquire() as conn:
        for _ in range(NUM_FREE):
            await end_import(conn, await bench.ask(bench.web.url("/bad")), "rejected", "it is bad")
    import_id = await bench.ask(bench.web.url("/a.tar"))
    async with bench.importing(), asyncio.timeout(PATIENCE_S):
        while True:
            async with bench.database.acquire() as conn:
                put_off = "SELECT count(*) FROM adapter_imports WHERE wait_until > now() AND state = 'fetching'"
                if await conn.fetchval(put_off):
                    break
            await asyncio.sleep(0.01)
        assert bench.files() == bench.intake.taken == []
        async with bench.database.acquire() as conn:
            await conn.execute(
                "UPDATE adapter_imports SET updated_at = updated_at - $1 * interval '1 second', "
                "wait_until = wait_until - $1 * interval '1 second'",
                FIRST_PAUSE_S,
            )
        await bench.until(import_id, lambda row: row.state == "uploaded")


async def test_a_gateway_that_stops_leaves_its_import_to_others(bench: Bench) -> None:
    bench.web.pages["/slow"] = SLOW
    async with bench.importing():
        import_id = await bench.ask(bench.web.url("/slow"))
        await bench.until(import_id, lambda row: row.received_bytes > 0)
    row = await bench.until(import_id, lambda row: True)
    assert (row.state, bench.files()) == ("fetching", [])


async def test_content_that_has_come_is_taken_in_before_a_gateway_stops(bench: Bench) -> None:
    bench.web.pages["/a.tar"] = answer(200, b"content")
    bench.intake.may_end.clear()
    async with bench.importing():
        import_id = await bench.ask(bench.web.url("/a.tar"))
        await bench.until(import_id, lambda row: bench.intake.num_begun == 1)
        asyncio.get_running_loop().call_later(0.2, bench.intake.may_end.set)
    assert bench.intake.taken == [("uploaded", b"content")]


async def test_what_the_intake_refuses_ends_nothing_else(bench: Bench) -> None:
    bench.web.pages["/a.tar"] = answer(200, b"content")
    bench.intake.refuses = True
    async with bench.importing():
        await bench.until(await bench.ask(bench.web.url("/a.tar")), lambda row: row.state == "uploaded")
        import_id = await bench.ask(bench.web.url("/a.tar"))
        await bench.until(import_id, lambda row: row.state == "uploaded" and len(bench.intake.taken) == 2)


async def test_slow_sources_of_one_tenant_hold_up_nobody_else(bench: Bench) -> None:
    bench.web.pages["/slow"] = SLOW
    bench.web.pages["/a.tar"] = answer(200, b"content")
    async with bench.database.acquire() as conn:
        organization = await ensure_organization(conn, "default")
        other = await create_project(conn, organization.id, "globex")
        assert other is not None
    slow = [await bench.ask(bench.web.url("/slow")) for _ in range(2 * MAX_AT_WORK)]
    async with bench.importing():
        await bench.until(slow[0], lambda row: row.received_bytes > 0)
        quick = await bench.ask(bench.web.url("/a.tar"), other.id)
        await bench.until(quick, lambda row: row.state == "uploaded", other.id)
        async with bench.database.acquire() as conn:
            begun = await conn.fetchval("SELECT count(*) FROM adapter_imports WHERE num_claims > 0 AND id <> $1", quick)
        assert begun == MAX_FETCHED
