"""The store holds what the tables refer to and, a little later, nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from adapters.ref import content_key
from gateway.lifecycle.collector import Collector
from tests.gateway.admin.adapter_uploads import WEIGHTS, upload
from tests.gateway.admin_server import AdminServer, write_adapter


async def test_what_nobody_refers_to_leaves_after_a_while(server: AdminServer, tmp_path: Path) -> None:
    """As what a gateway that died between keeping and referring left."""
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
    assert found["unreferenced"] == [orphan]
    async with server.client(await server.admin_key("admin_read", "admin_write", organization="other")) as other:
        theirs = (await other.post("/adapters/verify")).json()
    assert (theirs["num_verified"], theirs["missing"], theirs["damaged"]) == (0, [], [])
