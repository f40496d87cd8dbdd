"""A complete folder below the watched one becomes an adapter, once; nothing outside of the watched folder is ever
read."""

from __future__ import annotations

import asyncio
import datetime
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from adapters.store import AdapterStore
from gateway.adapters.cooldown import FIRST_PAUSE_S, NUM_FREE
from gateway.adapters.watched_files import find_adapters, read_and_copy
from gateway.adapters.watcher import Watcher
from gateway.db.adapters.adapter_imports import ImportRow, create_import, end_import, list_imports
from gateway.db.organization.audit import Author
from gateway.db.organization.organizations import ensure_organization
from gateway.db.organization.projects import archive_project, create_project, rename_project
from gateway.db.pool import Database
from gateway.domain.errors import GatewayError, InvalidRequest, Overloaded, QuotaExceeded
from tests.installation.waiting import until

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MAX_BYTES = 1000


class Intake:
    """A fake intake that refuses weights which contain "bad".

    taken: name and weights of each adapter but markers. refusals: errors to raise for the next adapters, in order.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.taken: list[tuple[str, bytes]] = []
        self.markers: set[str] = set()
        self.refusals: list[GatewayError] = []

    async def take_in(self, imported: ImportRow, content: Path) -> None:
        if self.refusals and not imported.name.startswith("marker"):
            async with self._database.acquire() as conn:
                await end_import(conn, imported.id, "failed", "not now")
            raise self.refusals.pop(0)
        if imported.name.startswith("marker"):
            self.markers.add(imported.name)
            return
        weights = await asyncio.to_thread((content / WEIGHTS).read_bytes)
        self.taken.append((imported.name, weights))
        if weights == b"bad":
            async with self._database.acquire() as conn:
                await end_import(conn, imported.id, "rejected", "it is bad")
            raise InvalidRequest("It is bad.", code="adapter_rejected")


def put(folder: Path, weights: bytes) -> Path:
    """Write an adapter's config and weights to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_bytes(b"{}")
    (folder / WEIGHTS).write_bytes(weights)
    return folder


class Bench:
    """A watched folder, the tenants acme and zz, and any number of watchers."""

    def __init__(self, database: Database, folder: Path, project_id: str) -> None:
        self.database = database
        self.folder = folder / "watched"
        self.folder.mkdir()
        self._store = AdapterStore(folder / "store")
        self._num_markers = 0
        self.project_id = project_id
        self.intake = Intake(database)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        watcher = Watcher(
            self.database,
            self.folder,
            self.intake.take_in,
            self._store,
            max_bytes=MAX_BYTES,
            poll_s=0.02,
            retry_s=0.05,
        )
        watcher.start()
        try:
            yield
        finally:
            await watcher.stop()

    def put(self, where: str, weights: bytes) -> Path:
        return put(self.folder / where, weights)

    async def imports(self) -> list[ImportRow]:
        async with self.database.acquire() as conn:
            return await list_imports(conn, self.project_id, after=None, limit=100)

    async def until_taken(self, *expected: tuple[str, bytes]) -> None:
        await self.until(lambda: self.intake.taken == list(expected))

    async def until(self, holds: Callable[[], bool]) -> None:
        async def ask() -> bool:
            return holds()

        await until(ask, lambda: str(self.intake.taken))

    async def until_all_seen(self) -> None:
        """Wait until the watcher has examined all folders, as shown by a marker adapter that is added last."""
        self._num_markers += 1
        marker = f"marker-{self._num_markers}"
        self.put(f"zz/{marker}", b"marker")
        await self.until(lambda: marker in self.intake.markers)


@pytest.fixture
async def bench(database: Database, tmp_path: Path) -> Bench:
    async with database.acquire() as conn:
        organization = await ensure_organization(conn, "default")
        project = await create_project(conn, organization.id, "acme")
        await create_project(conn, organization.id, "secret")
        assert project is not None
        await create_project(conn, organization.id, "zz")
    return Bench(database, tmp_path, project.id)


async def test_a_whole_adapter_and_each_change_of_it_are_taken_in_once_by_one_gateway(bench: Bench) -> None:
    bench.put("acme/pirate", b"one")
    async with bench.watching(), bench.watching():
        await bench.until_taken(("pirate", b"one"))
        bench.put("acme/pirate", b"two")
        await bench.until_taken(("pirate", b"one"), ("pirate", b"two"))
        await bench.until_all_seen()
        await bench.until_taken(("pirate", b"one"), ("pirate", b"two"))
    made = [row for row in await bench.imports() if row.name == "pirate"]
    assert [(row.source, row.author.kind, row.promote, row.size_bytes) for row in made] == [
        ("folder", "system", True, 5)
    ] * 2


async def test_an_adapter_of_a_tenant_that_is_paused_waits(bench: Bench) -> None:
    author = Author(organization_id="org", kind="system", id="x", email=None, address="", request_id="")
    async with bench.database.acquire() as conn:
        for _ in range(NUM_FREE):
            made = await create_import(
                conn, bench.project_id, name="a", source="upload", state="uploaded", promote=True, author=author
            )
            await end_import(conn, made.id, "rejected", "it is bad")
    bench.put("acme/pirate", b"one")
    async with bench.watching():
        await bench.until_all_seen()
        await bench.until_all_seen()
        assert bench.intake.taken == []
        assert len(await bench.imports()) == NUM_FREE, "none was begun"
        async with bench.database.acquire() as conn:
            await conn.execute(
                "UPDATE adapter_imports SET updated_at = updated_at - $1 * interval '1 second'", FIRST_PAUSE_S
            )
        await bench.until_taken(("pirate", b"one"))


async def test_half_an_adapter_waits_for_the_other_half(bench: Bench) -> None:
    folder = bench.put("acme/pirate", b"one")
    (folder / CONFIG).unlink()
    async with bench.watching():
        await bench.until_all_seen()
        assert bench.intake.taken == []
        (folder / CONFIG).write_bytes(b"{}")
        await bench.until_taken(("pirate", b"one"))


async def test_after_a_restart_nothing_happens_to_what_is_as_it_was(bench: Bench) -> None:
    bench.put("acme/pirate", b"one")
    bad = bench.put("acme/bad", b"bad")
    async with bench.watching():
        await bench.until_taken(("bad", b"bad"), ("pirate", b"one"))
        await bench.until_all_seen()
    os.utime(bench.folder / "acme/pirate" / WEIGHTS, ns=(1, 1))  # another time, the same bytes
    async with bench.watching():
        await bench.until_all_seen()
        await bench.until_taken(("bad", b"bad"), ("pirate", b"one"))
        (bad / WEIGHTS).write_bytes(b"good")
        await bench.until_taken(("bad", b"bad"), ("pirate", b"one"), ("bad", b"good"))
    states = [(row.state, row.reason) for row in await bench.imports() if row.name == "bad"]
    assert ("rejected", "it is bad") in states


async def test_another_gateway_takes_over(bench: Bench) -> None:
    async with bench.watching():
        async with bench.watching():
            await bench.until_all_seen()
        bench.put("acme/pirate", b"one")
        await bench.until_taken(("pirate", b"one"))


async def test_a_tenant_that_comes_later_gets_its_adapter(bench: Bench) -> None:
    bench.put("initech/pirate", b"one")
    bench.put("acme/No Name", b"one")
    bench.put("acme/.partial", b"one")
    async with bench.watching():
        await bench.until_all_seen()
        assert bench.intake.taken == []
        async with bench.database.acquire() as conn:
            await create_project(conn, (await ensure_organization(conn, "default")).id, "initech")
        await bench.until_taken(("pirate", b"one"))


async def test_what_cannot_be_taken_in_now_is_taken_in_later(bench: Bench) -> None:
    bench.put("acme/pirate", b"one")
    bench.intake.refusals = [Overloaded("The store is away."), QuotaExceeded("It is full.")]
    async with bench.watching():
        await bench.until_taken(("pirate", b"one"))
    assert [row.state for row in await bench.imports()] == ["uploaded", "failed", "failed"]


async def test_what_fails_again_and_again_is_tried_less_and_less(bench: Bench) -> None:
    """An adapter that is tried again every 0.05 s would be tried dozens of times."""
    bench.put("acme/pirate", b"one")
    bench.intake.refusals = [Overloaded("The store is away.")] * 100
    start_s = asyncio.get_running_loop().time()
    async with bench.watching():
        await bench.until(lambda: len(bench.intake.refusals) <= 95)
        pauses_s = asyncio.get_running_loop().time() - start_s
    assert pauses_s >= 0.05 * (1 + 2 + 4 + 8)


async def test_a_folder_never_becomes_another_projects(bench: Bench) -> None:
    async with bench.database.acquire() as conn:
        ours, theirs = [await ensure_organization(conn, name) for name in ("default", "other")]
        other = await create_project(conn, theirs.id, "theirs")
        assert other is not None
    bench.put("acme/pirate", b"one")
    async with bench.watching():
        await bench.until_taken(("pirate", b"one"))
        async with bench.database.acquire() as conn:
            assert await rename_project(conn, ours.id, bench.project_id, "acme-gmbh")
            assert await rename_project(conn, theirs.id, other.id, "acme")
        bench.put("acme/pirate", b"two")
        await bench.until_taken(("pirate", b"one"), ("pirate", b"two"))
        async with bench.database.acquire() as conn:
            await archive_project(conn, ours.id, bench.project_id, datetime.timedelta())
        bench.put("acme/poet", b"three")
        bench.put(f"{other.id}/poet", b"four")
        await bench.until_taken(("pirate", b"one"), ("pirate", b"two"), ("poet", b"four"))
        await bench.until_all_seen()
    assert len(bench.intake.taken) == 3, "the archived project's folder is nobody's"
    async with bench.database.acquire() as conn:
        assert [row.name for row in await list_imports(conn, other.id, after=None, limit=9)] == ["poet"]


def _link(target: Path, link: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)


async def test_nothing_leads_out_of_the_folder(bench: Bench, tmp_path: Path) -> None:
    secret = tmp_path / "secret" / "acme" / "stolen"
    secret.mkdir(parents=True)
    for name in (CONFIG, WEIGHTS):
        (secret / name).write_bytes(b"secret")
    _link(secret, bench.folder / "acme/linked-folder")
    _link(secret.parent, bench.folder / "secret")
    _link(secret / CONFIG, bench.put("acme/linked-file", b"x") / "target")
    linked, hard, pipe, large = (bench.put(f"acme/{kind}", b"x") for kind in ("linked", "hard", "pipe", "large"))
    for folder in (linked, hard, pipe):
        (folder / WEIGHTS).unlink()
    _link(secret / WEIGHTS, linked / WEIGHTS)
    (hard / WEIGHTS).hardlink_to(secret / WEIGHTS)
    os.mkfifo(pipe / WEIGHTS)
    (large / WEIGHTS).write_bytes(bytes(MAX_BYTES))
    async with bench.watching():
        await bench.until_all_seen()
    async with bench.watching():
        await bench.until_all_seen()
    assert bench.intake.taken == [("linked-file", b"x")]
    refused = {row.name: row.reason for row in await bench.imports() if row.state == "rejected"}
    assert refused == {
        "linked": f"{WEIGHTS} is a symbolic link",
        "hard": f"{WEIGHTS} has other names as well (hard links): copy it instead",
        "pipe": f"{WEIGHTS} is not a regular file",
        "large": f"the adapter is larger than {MAX_BYTES} bytes, the most that LORIKEET_MAX_ADAPTER_BYTES allows",
    }
    assert len([row for row in await bench.imports() if row.state == "rejected"]) == 4, "each once, restarts included"


@pytest.mark.parametrize("swap", ["file", "folder", "tenant", "bytes"])
def test_what_is_swapped_between_the_look_and_the_reading_is_not_read(tmp_path: Path, swap: str) -> None:
    watched = tmp_path / "watched"
    put(watched / "acme/pirate", b"one")
    (seen,) = find_adapters(watched, MAX_BYTES)
    secret = put(tmp_path / "secret/pirate", b"two")
    if swap == "bytes":
        put(watched / "acme/pirate", b"two")
    else:
        swapped, target = {
            "file": (watched / "acme/pirate" / WEIGHTS, secret / WEIGHTS),
            "folder": (watched / "acme/pirate", secret),
            "tenant": (watched / "acme", secret.parent),
        }[swap]
        swapped.rename(tmp_path / "aside")
        swapped.symlink_to(target)
    (into := tmp_path / "into").mkdir()
    assert read_and_copy(watched, seen, into) is None
    assert b"two" not in {file.read_bytes() for file in into.iterdir()}
