"""An upload is for the base model that the gateway serves."""

from __future__ import annotations

from pathlib import Path

import httpx

from gateway.db.adapters import adapter_versions, adapters
from gateway.db.adapters.bases import register_base
from gateway.db.pool import Database
from gateway.domain.routing.bases import Base
from tests.gateway.admin.adapter_uploads import error_of, upload
from tests.gateway.admin_server import AdminServer, write_adapter
from tests.gateway.bases import BASE_DIGEST

OTHER_DIGEST = "0de5" * 16


async def test_an_upload_for_a_name_of_another_base_is_refused_and_leaves_nothing(
    database: Database, operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    async with database.acquire() as conn:
        await register_base(conn, OTHER_DIGEST, "other")
        await adapter_versions.put_adapter(
            conn,
            acme.removeprefix("/projects/"),
            "pirate",
            base_digest=OTHER_DIGEST,
            digest="a" * 64,
            rank=8,
            size_bytes=9,
        )
    refused = await upload(operator, acme, "pirate", write_adapter(tmp_path / "a"))
    assert error_of(refused) == (409, "name", "adapter_of_other_base")
    assert (await operator.get(f"{acme}/adapters/pirate")).json()["version"] == 1
    taken = await upload(operator, acme, "poet", tmp_path / "a")
    assert taken.status_code == 200
    async with database.acquire() as conn:
        made = await adapters.find_adapter(conn, acme.removeprefix("/projects/"), "poet")
    assert made is not None and made.base_digest == BASE_DIGEST


async def test_nobody_is_told_of_a_base_that_only_others_may_use(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    bases = server.services.bases
    [own] = [base for name in bases.names if (base := bases.named(name)) is not None]
    others = frozenset({"org_other"})
    hidden = Base("hidden", OTHER_DIGEST, own.shape, others)
    twin = Base("hidden-twin", BASE_DIGEST, own.shape, others)
    bases.replace([hidden, twin, own], {})
    made = (await upload(operator, acme, "pirate", write_adapter(tmp_path / "a"))).json()
    listed = (await operator.get(f"{acme}/adapters")).json()["data"]
    [version] = (await operator.get(f"{acme}/adapters/pirate/versions")).json()["data"]
    assert (made["model"], [each["model"] for each in listed]) == ("tiny:pirate", ["tiny:pirate"])
    assert version["model"] == "tiny:pirate@1"
    assert (await operator.get("/status")).json()["model"] == "tiny"
    bases.replace([hidden, twin], {BASE_DIGEST: "hidden-twin"})
    assert (await operator.get(f"{acme}/adapters/pirate")).json()["model"] == f"{BASE_DIGEST[:12]}:pirate"
    assert (await operator.get("/status")).json()["model"] == ""
    refused = await upload(operator, acme, "poet", tmp_path / "a")
    assert error_of(refused) == (409, "name", "adapter_of_other_base")
