"""Versions of adapters through the admin API: their numbers, which one is current, and how they end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from tests.gateway.admin.adapter_uploads import error_of, upload
from tests.gateway.admin_server import AdminServer, write_adapter


async def get(operator: httpx.AsyncClient, path: str) -> dict[str, Any]:
    found: dict[str, Any] = (await operator.get(path)).json()
    return found


async def events(operator: httpx.AsyncClient) -> list[str]:
    """Return the types of changes of adapters in the audit log, oldest first."""
    log = await get(operator, "/audit_logs?limit=100")
    return [entry["type"] for entry in reversed(log["data"]) if entry["type"].startswith("adapter")]


async def test_versions_are_promoted_rolled_back_retired_and_deleted(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    pirate = f"{acme}/adapters/pirate"
    digests = []
    for seed, promote in ((1, True), (2, True), (3, False)):
        folder = write_adapter(tmp_path / str(seed), seed=seed)
        reply = (await upload(operator, acme, "pirate", folder, promote=promote)).json()
        assert (reply["uploaded_version"], reply["version"], reply["version_state"]) == (seed, min(seed, 2), "ready")
        detail = await get(operator, f"{pirate}/versions/{seed}")
        digests.append(detail["digest"])
        assert detail["report"]["num_modules"] == 2 and detail["probe"]["max_difference"] > 0

    listed = (await get(operator, f"{pirate}/versions"))["data"]
    assert [(row["id"], row["current"], row["promote"]) for row in listed] == [
        ("pirate@3", False, False),
        ("pirate@2", True, True),
        ("pirate@1", False, True),
    ]
    (rest,) = (await get(operator, f"{pirate}/versions?after=pirate@2"))["data"]
    assert (rest["model"], rest["state"]) == ("tiny:pirate@1", "ready")

    promoted = (await operator.post(f"{pirate}/versions/3/promote")).json()
    assert (promoted["version"], promoted["previous_version"], promoted["digest"]) == (3, 2, digests[2])
    for version, previous in ((2, 3), (3, 2)):
        back = (await operator.post(f"{pirate}/rollback")).json()
        assert (back["version"], back["previous_version"]) == (version, previous)

    assert error_of(await operator.post(f"{pirate}/versions/3/retire")) == (409, None, "conflict")
    assert error_of(await operator.delete(f"{pirate}/versions/2")) == (409, None, "conflict")
    assert (await operator.post(f"{pirate}/versions/2/retire")).json()["state"] == "retired"
    assert (await operator.post(f"{pirate}/versions/2/retire")).json()["state"] == "retired", "once is enough"
    assert error_of(await operator.post(f"{pirate}/versions/2/promote")) == (409, None, "conflict")
    assert error_of(await operator.post(f"{pirate}/rollback")) == (409, None, "conflict")
    assert (await operator.delete(f"{pirate}/versions/2")).json() == {
        "id": "pirate@2",
        "deleted": True,
        "object": "organization.project.adapter.version.deleted",
    }
    assert (await operator.get(f"{pirate}/versions/2")).status_code == 404
    assert await server.services.lifecycle.collector.collect() == [digests[1]]
    again = (await upload(operator, acme, "pirate", tmp_path / "2")).json()
    assert (again["uploaded_version"], again["version"]) == (4, 4), "a number is never used again"

    made = ["adapter.created"] + ["adapter_version.created", "adapter_version.ready", "adapter.promoted"] * 2
    made += ["adapter_version.created", "adapter_version.ready"]
    changed = ["adapter.promoted", "adapter.rolled_back", "adapter.rolled_back"]
    ended = ["adapter_version.retired", "adapter_version.deleted"]
    last = ["adapter_version.created", "adapter_version.ready", "adapter.promoted"]
    assert await events(operator) == [*made, *changed, *ended, *last]


async def test_content_that_is_there_gets_no_second_number(
    operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    for seed in (1, 2):
        await upload(operator, acme, "pirate", write_adapter(tmp_path / str(seed), seed=seed))
    before = await events(operator)
    for seed, promote, version, changed in ((2, True, 2, False), (1, False, 2, False), (1, True, 1, True)):
        reply = (await upload(operator, acme, "pirate", tmp_path / str(seed), promote=promote)).json()
        assert (reply["uploaded_version"], reply["version"], reply["changed"]) == (seed, version, changed)
    assert await events(operator) == [*before, "adapter.promoted"], "what changes nothing records nothing"


async def test_a_version_that_an_alias_names_is_not_retired(
    operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    for seed in (1, 2):
        await upload(operator, acme, "pirate", write_adapter(tmp_path / str(seed), seed=seed))
    alias = {"name": "support-bot", "adapter": "pirate", "version": 1}
    assert (await operator.post(f"{acme}/aliases", json=alias)).status_code == 200
    refused = await operator.post(f"{acme}/adapters/pirate/versions/1/retire")
    assert error_of(refused) == (409, None, "conflict")
    assert "support-bot" in refused.json()["error"]["message"]
    await operator.delete(f"{acme}/aliases/support-bot")
    assert (await operator.post(f"{acme}/adapters/pirate/versions/1/retire")).status_code == 200


async def test_an_adapter_or_version_that_does_not_exist_is_not_found(
    operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    await upload(operator, acme, "pirate", write_adapter(tmp_path / "a"))
    unknown = [f"pirate/versions/{number}" for number in ("2", "0", "x", "1" * 10)]
    for path in ("poet", "poet/versions", "poet/versions/1", *unknown):
        assert (await operator.get(f"{acme}/adapters/{path}")).status_code == 404, path
    assert error_of(await operator.get(f"{acme}/adapters/pirate/versions?after=poet@1"))[1] == "after"
    assert error_of(await operator.post(f"{acme}/adapters/pirate/rollback")) == (409, "name", "conflict")
