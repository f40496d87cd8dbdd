"""No version can be used before an engine was seen to run it, whenever that comes and whichever gateway dies
meanwhile."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx

from adapters.ref import content_key
from gateway.domain.errors import BackendFailed, InvalidRequest, Overloaded
from tests.gateway.admin.adapter_uploads import error_of, upload
from tests.gateway.admin_server import AdminServer, write_adapter

AWAY = Overloaded("No engine can take the request now.")


async def versions(operator: httpx.AsyncClient, project: str) -> list[tuple[int, str, bool]]:
    """Return the number and state of each version of `pirate`, and whether it is current, newest first."""
    rows = (await operator.get(f"{project}/adapters/pirate/versions")).json()["data"]
    return [(row["version"], row["state"], row["current"]) for row in rows]


async def adapter(operator: httpx.AsyncClient, project: str) -> dict[str, Any]:
    found: dict[str, Any] = (await operator.get(f"{project}/adapters/pirate")).json()
    return found


async def wait_without_engine(
    server: AdminServer, operator: httpx.AsyncClient, project: str, folder: Path, *seeds: int
) -> None:
    """Upload versions, each to become current, while no engine can probe them."""
    server.engines.is_ready = False
    for seed in seeds:
        reply = await upload(operator, project, "pirate", write_adapter(folder / str(seed), seed=seed))
        assert (reply.status_code, reply.json()["version_state"]) == (200, "inspected"), reply.text
    server.engines.is_ready = True


async def test_without_an_engine_an_upload_waits_and_its_client_does_not(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    prober, server.engines.is_ready = server.services.lifecycle.prober, False
    reply = await upload(operator, acme, "pirate", write_adapter(tmp_path / "a"))
    put = reply.json()
    assert (put["version_state"], put["changed"], put["uploaded_version"]) == ("inspected", True, 1)
    assert (put["version"], put["digest"], put["rank"], put["size_bytes"]) == (None, None, None, None)
    assert not await prober.probe_waiting()
    assert await versions(operator, acme) == [(1, "inspected", False)]
    again = (await upload(operator, acme, "pirate", tmp_path / "a")).json()
    assert (again["uploaded_version"], again["changed"]) == (1, False), "it is the version that waits"
    server.engines.is_ready = True
    assert await prober.probe_waiting()
    assert not await prober.probe_waiting()
    assert await versions(operator, acme) == [(1, "ready", True)]
    project_id = acme.removeprefix("/projects/")
    assert server.engines.probed == [content_key(project_id, (await adapter(operator, acme))["digest"])]


async def test_what_the_engine_refuses_is_rejected_with_its_reason(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    await upload(operator, acme, "pirate", write_adapter(tmp_path / "good", seed=1))
    server.engines.answers = [InvalidRequest("its answers are not finite")]
    refused = await upload(operator, acme, "pirate", write_adapter(tmp_path / "bad", seed=2))
    assert error_of(refused) == (400, "file", "adapter_rejected")
    assert refused.json()["error"]["message"] == "its answers are not finite"
    assert await versions(operator, acme) == [(2, "rejected", False), (1, "ready", True)]
    detail = (await operator.get(f"{acme}/adapters/pirate/versions/2")).json()
    assert (detail["reason"], detail["probe"]) == ("its answers are not finite", None)
    assert len(await server.services.lifecycle.collector.collect()) == 1
    assert (await operator.delete(f"{acme}/adapters/pirate/versions/2")).status_code == 200
    assert await versions(operator, acme) == [(1, "ready", True)]


async def test_of_two_that_become_ready_in_the_wrong_order_the_later_one_stays_current(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    await wait_without_engine(server, operator, acme, tmp_path, 1, 2)
    prober, adapter_id = server.services.lifecycle.prober, (await adapter(operator, acme))["id"]
    await prober.probe(adapter_id, 2, mine=False)
    await prober.probe(adapter_id, 1, mine=False)
    assert await versions(operator, acme) == [(2, "ready", True), (1, "ready", False)]


async def test_a_promotion_is_not_undone_by_what_was_uploaded_before_it(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    for seed in (1, 2):
        await upload(operator, acme, "pirate", write_adapter(tmp_path / str(seed), seed=seed))
    await wait_without_engine(server, operator, acme, tmp_path, 3)
    await operator.post(f"{acme}/adapters/pirate/versions/1/promote")
    assert await server.services.lifecycle.prober.probe_waiting()
    assert await versions(operator, acme) == [(3, "ready", False), (2, "ready", False), (1, "ready", True)]

    await wait_without_engine(server, operator, acme, tmp_path, 4)
    await upload(operator, acme, "pirate", tmp_path / "1")  # asks once more for the current version to be current
    assert await server.services.lifecycle.prober.probe_waiting()
    assert (await adapter(operator, acme))["version"] == 1


async def test_what_a_dead_gateway_had_claimed_is_probed_by_another(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    """The claim's time is moved back rather than waited for."""
    await wait_without_engine(server, operator, acme, tmp_path, 1)
    prober = server.services.lifecycle.prober
    async with server.services.database.acquire() as conn:
        await conn.execute("UPDATE adapter_versions SET claimed_at = now() - interval '19 seconds'")
        assert not await prober.probe_waiting(), "it may still be alive"
        await conn.execute("UPDATE adapter_versions SET claimed_at = now() - interval '21 seconds'")
    assert await prober.probe_waiting()
    assert await versions(operator, acme) == [(1, "ready", True)]


async def test_an_adapter_that_ends_engines_is_not_probed_for_ever(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    await wait_without_engine(server, operator, acme, tmp_path, 1)
    engines, prober = server.engines, server.services.lifecycle.prober
    engines.answers = [AWAY] * 50
    for _ in range(20):
        assert not await prober.probe_waiting(), "it was only busy"
    engines.dies = True
    for _ in range(10):
        assert not await prober.probe_waiting()
        engines.is_ready = True
    assert await prober.probe_waiting()
    assert await versions(operator, acme) == [(1, "rejected", False)]
    assert len(engines.probed) == 30


async def test_what_fails_the_engine_waits_twice_as_long_each_time_and_others_come_first(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    """The retry's time is moved back rather than waited for."""
    await wait_without_engine(server, operator, acme, tmp_path, 1, 2)
    engines, prober = server.engines, server.services.lifecycle.prober
    waits = "SELECT round(extract(epoch FROM claimed_at + interval '20 seconds' - now()))::int FROM adapter_versions"
    async with server.services.database.acquire() as conn:
        for waited_s, wait_s in ((0, 1), (8, 8), (16, 16), (3600, 60)):
            await conn.execute(
                "UPDATE adapter_versions SET claimed_at = NULL, changed_at = now() - make_interval(secs => $1)"
                " WHERE version = 1",
                waited_s,
            )
            engines.answers = [BackendFailed("It could not be loaded.")]
            await prober.probe((await adapter(operator, acme))["id"], 1, mine=False)
            assert abs(await conn.fetchval(f"{waits} WHERE version = 1") - wait_s) <= 1
    assert await prober.probe_waiting(), "the other one"
    assert await versions(operator, acme) == [(2, "ready", True), (1, "inspected", False)]
    assert not await prober.probe_waiting()
    async with server.services.database.acquire() as conn:
        assert await conn.fetchval("SELECT num_probes FROM adapter_versions WHERE version = 1") == 0
        await conn.execute("UPDATE adapter_versions SET claimed_at = claimed_at - interval '61 seconds'")
    assert await prober.probe_waiting()
    assert await versions(operator, acme) == [(2, "ready", True), (1, "ready", False)]


async def test_uploads_of_one_name_at_once_are_versions_of_one_adapter(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    folders = [write_adapter(tmp_path / str(seed), seed=seed) for seed in range(4)]
    replies = await asyncio.gather(*(upload(operator, acme, "pirate", folder) for folder in [*folders, folders[0]]))
    assert {reply.status_code for reply in replies} == {200}
    assert len({reply.json()["id"] for reply in replies}) == 1
    assert {reply.json()["uploaded_version"] for reply in replies} == {1, 2, 3, 4}
    found = await versions(operator, acme)
    assert [state for _, state, _ in found] == ["ready"] * 4
    assert len(server.services.store.digests()) == 4


async def test_an_upload_without_an_engine_is_answered_at_once(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    server.engines.is_ready = False
    folder, start_s = write_adapter(tmp_path / "a"), time.monotonic()
    assert (await upload(operator, acme, "pirate", folder)).json()["version_state"] == "inspected"
    assert time.monotonic() - start_s < 10.0, "that of inspecting it, on a machine that others use"
