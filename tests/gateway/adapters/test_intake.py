"""An import ends, and a version that was called ready has its content, whatever the store does meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from adapters.inspection import BaseShape, Bounds, Report, inspect
from adapters.store import AdapterStore
from gateway.adapters.intake import MAX_REFERRING, Inspect
from gateway.db.pool import Database
from tests.gateway.admin.adapter_uploads import upload
from tests.gateway.admin_server import serve_admin, write_adapter
from tests.patience import PATIENCE_S


class WatchedStore(AdapterStore):
    """A store that calls back before it answers or stores.

    on_holds: called with the number of the question, beginning with 1, and the digest, before `holds` answers.
    on_keep: called before content is stored.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.on_holds: Callable[[int, str], None] = lambda number, digest: None
        self.on_keep: Callable[[], None] = lambda: None
        self._num_questions = 0

    def holds(self, digest: str) -> bool:
        self._num_questions += 1
        self.on_holds(self._num_questions, digest)
        return super().holds(digest)

    def keep(self, folder: Path, digest: str) -> None:
        self.on_keep()
        super().keep(folder, digest)


@pytest.fixture
def store(tmp_path: Path) -> WatchedStore:
    return WatchedStore(tmp_path / "store")


def write_to_a_full_disk() -> None:
    with Path("/dev/full").open("wb") as file:
        file.write(b"?")


async def inspect_on_a_full_disk(path: Path, into: Path, base: BaseShape, bounds: Bounds, *, niceness: int) -> Report:
    write_to_a_full_disk()
    return await inspect(path, into, base, bounds, niceness=niceness)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


@asynccontextmanager
async def operator_of(
    database: Database, folder: Path, *, store: AdapterStore | None = None, inspect: Inspect = inspect
) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        serve_admin(database, folder, store=store, inspect=inspect) as server,
        server.client(server.operator_key) as client,
    ):
        yield client


async def project(operator: httpx.AsyncClient) -> str:
    return f"/projects/{(await operator.post('/projects', json={'name': 'acme'})).json()['id']}"


async def assert_no_room(operator: httpx.AsyncClient, folder: Path) -> None:
    acme = await project(operator)
    reply = await upload(operator, acme, "pirate", write_adapter(folder))
    assert (reply.status_code, reply.json()["error"]["message"]) == (503, "The disk of the server is full.")
    assert "retry-after" in reply.headers
    (ended,) = (await operator.get(f"{acme}/adapter_imports")).json()["data"]
    assert (ended["state"], ended["reason"]) == ("failed", "The disk of the server is full.")
    assert (await operator.get(f"{acme}/adapters")).json()["data"] == []


async def test_an_import_fails_when_its_copy_has_no_room(database: Database, tmp_path: Path) -> None:
    async with operator_of(database, tmp_path / "server", inspect=inspect_on_a_full_disk) as operator:
        await assert_no_room(operator, tmp_path / "a")


async def test_an_import_fails_when_the_store_has_no_room(
    database: Database, store: WatchedStore, tmp_path: Path
) -> None:
    store.on_keep = write_to_a_full_disk
    async with operator_of(database, tmp_path / "server", store=store) as operator:
        await assert_no_room(operator, tmp_path / "a")
    assert list((tmp_path / "store").iterdir()) == []


@pytest.mark.parametrize("number", [1, 2], ids=["before", "after"])
async def test_what_a_late_removal_takes_is_put_back(
    number: int, database: Database, store: WatchedStore, tmp_path: Path
) -> None:
    """The removal happens before or after a version refers to the content, as a bucket may carry out the request of
    a collector that has lost its lock."""
    taken: list[str] = []

    def take(question: int, digest: str) -> None:
        if question == number:
            taken.append(digest)
            store.remove(digest)

    store.on_holds = take
    async with operator_of(database, tmp_path / "server", store=store) as operator:
        reply = await upload(operator, await project(operator), "pirate", write_adapter(tmp_path / "a"))
        assert (reply.status_code, reply.json()["version_state"]) == (200, "ready"), reply.text
    assert store.digests() == taken


async def test_a_slow_store_takes_few_connections(database: Database, store: WatchedStore, tmp_path: Path) -> None:
    """At most MAX_REFERRING uploads ask the store while they hold a connection of the database."""
    answers, asking = threading.Event(), list[int]()

    def ask(number: int, digest: str) -> None:
        asking.append(number)
        answers.wait(PATIENCE_S)

    store.on_holds = ask
    num_uploads, store_dir = MAX_REFERRING + 2, tmp_path / "store"
    folders = [write_adapter(tmp_path / str(seed), seed=seed) for seed in range(num_uploads)]
    async with operator_of(database, tmp_path / "server", store=store) as operator:
        acme = await project(operator)
        try:
            uploads = [asyncio.create_task(upload(operator, acme, folder.name, folder)) for folder in folders]
            # Each upload has a workspace until it is answered, and one more while it is inspected.
            await until(lambda: len(store.digests()) == num_uploads == len(list(store_dir.glob(".*"))))
            assert (await operator.get(f"{acme}/adapters")).status_code == 200
            assert len(asking) == MAX_REFERRING
        finally:
            answers.set()
        assert {reply.status_code for reply in await asyncio.gather(*uploads)} == {200}
