"""The store holds the content that the tables refer to and, a little later, nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from adapters.ref import content_key
from adapters.store import AdapterStore
from gateway.adapters.collector import Collector
from gateway.adapters.uploads import Uploads
from gateway.adapters.verify import Verifier
from gateway.db.pool import Database
from gateway.domain.errors import Conflict
from tests.gateway.admin.adapter_uploads import WEIGHTS, upload
from tests.gateway.admin_server import AdminServer, write_adapter
from tests.patience import PATIENCE_S


async def test_what_nobody_refers_to_leaves_after_a_while(server: AdminServer, tmp_path: Path) -> None:
    """A gateway that dies after storing content and before referring to it leaves such content."""
    lifecycle, orphan = server.services.lifecycle, server.services.store.add(write_adapter(tmp_path / "orphan"))
    engines = server.engines
    patient = Collector(
        server.services.database,
        server.services.store,
        lifecycle.uploads,
        resident=engines.resident,
        unload=engines.unload,
        grace_s=0.05,
    )
    assert await patient.collect() == []
    assert server.services.store.digests() == [orphan]
    await asyncio.sleep(0.06)
    assert await patient.collect() == [orphan]
    assert server.services.store.digests() == []


async def test_workspaces_of_the_dead_go_while_this_gateway_lives(server: AdminServer) -> None:
    dead = server.store_dir / ".temporary-of-the-dead"
    dead.mkdir()
    with server.services.store.workspace() as workspace:
        await server.services.lifecycle.collector.collect()
        assert workspace.exists() and not dead.exists()


class CountingStore(AdapterStore):
    """A store that counts how often all its content was listed."""

    num_looks = 0

    def digests(self) -> list[str]:
        self.num_looks += 1
        return super().digests()


async def test_one_gateway_of_all_looks_through_the_store(database: Database, tmp_path: Path) -> None:
    stores = [CountingStore(tmp_path / "store") for _ in range(2)]
    collectors = [
        Collector(
            database, store, Uploads(database, tmp_path / "uploads"), resident=frozenset, unload=unload, grace_s=0.01
        )
        for store in stores
    ]
    digest = stores[0].add(write_adapter(tmp_path / "orphan"))
    for collector in collectors:
        collector.start()
    try:
        await until(lambda: not stores[0].holds(digest))
        assert sorted(store.num_looks > 0 for store in stores) == [False, True]
        first = 0 if stores[0].num_looks else 1
        await collectors[first].stop()
        await until(lambda: stores[1 - first].num_looks > 0)
    finally:
        for collector in collectors:
            await collector.stop()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if holds():
                return
            await asyncio.sleep(0.02)


async def unload(key: str) -> None:
    raise AssertionError(key)


class GatedStore(AdapterStore):
    """A store that lists its content only once its gate is open."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.gate, self.entered = threading.Event(), threading.Event()

    def digests(self) -> list[str]:
        self.entered.set()
        assert self.gate.wait(PATIENCE_S)
        return super().digests()


async def test_one_verification_runs_at_a_time(database: Database, tmp_path: Path) -> None:
    store = GatedStore(tmp_path / "store")
    verifier = Verifier(database, store)
    first = asyncio.create_task(verifier.verify("org"))
    try:
        assert await asyncio.to_thread(store.entered.wait, 10.0)
        with pytest.raises(Conflict) as refused:
            await verifier.verify("org")
        assert refused.value.code == "verification_running"
    finally:
        store.gate.set()
    assert (await first).num_verified == 0
    assert (await verifier.verify("org")).num_verified == 0


async def test_engines_forget_what_a_tenant_has_no_more(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    globex = f"/projects/{(await operator.post('/projects', json={'name': 'globex'})).json()['id']}"
    folder = write_adapter(tmp_path / "shared")
    for project in (acme, globex):
        digest = (await upload(operator, project, "pirate", folder)).json()["digest"]
    await operator.delete(f"{acme}/adapters/pirate")
    assert await server.services.lifecycle.collector.collect() == [], "the other tenant has it still"
    assert server.engines.unloaded == [content_key(acme.removeprefix("/projects/"), digest)]
    assert server.engines.resident_keys == {content_key(globex.removeprefix("/projects/"), digest)}


async def test_verification_tells_what_is_missing_damaged_and_unreferenced(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    store, digests = server.services.store, []
    for seed in range(3):
        reply = await upload(operator, acme, f"a{seed}", write_adapter(tmp_path / str(seed), seed=seed))
        digests.append(reply.json()["digest"])
    orphan = store.add(write_adapter(tmp_path / "orphan", seed=9))
    store.remove(digests[1])
    weights = store.path(digests[2]) / WEIGHTS
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)

    found = (await operator.post("/adapters/verify")).json()
    assert found["num_verified"] == 1
    assert [(fault["name"], fault["version"], fault["digest"]) for fault in found["missing"]] == [("a1", 1, digests[1])]
    assert [(fault["name"], fault["digest"]) for fault in found["damaged"]] == [("a2", digests[2])]
    assert found["num_unreferenced"] == 1
    assert orphan not in str(found)
    async with server.client(await server.admin_key("admin_read", "admin_write", organization="other")) as other:
        theirs = (await other.post("/adapters/verify")).json()
    assert (theirs["num_verified"], theirs["missing"], theirs["damaged"]) == (0, [], [])
