"""A pool that changes to another base takes along the adapters that fit, and loses none unless that is confirmed."""

from __future__ import annotations

from pathlib import Path

from adapters.store import AdapterStore
from engine.config import model_digest
from gateway.db.adapters.adapter_versions import put_adapter
from gateway.db.organization.organizations import ensure_organization
from gateway.db.organization.projects import create_project
from tests.adapters.folders import tensors_of_width, write_adapter
from tests.gateway.agent.site import Host
from tests.installation.waiting import until

HIDDEN = 32
"""The width of the tests' model (`make_model_folder`)."""


async def _two_adapters(host: Host, tmp_path: Path, base_digest: str) -> None:
    """Create for tenant acme an adapter that fits every model of the host, and one that fits none."""
    store = AdapterStore(host.data_dir / "adapters")
    async with host.database.acquire() as conn:
        organization = await ensure_organization(conn, "default")
        project = await create_project(conn, organization.id, "acme")
        assert project is not None
        for name, width in (("good", HIDDEN), ("bad", 2 * HIDDEN)):
            digest = store.add(write_adapter(tmp_path / name, tensors=tensors_of_width(width)))
            await put_adapter(conn, project.id, name, base_digest=base_digest, digest=digest, rank=2, size_bytes=1)


async def _bases(host: Host) -> dict[str, str]:
    """Return the digest of each adapter's base, by the adapter's name."""
    async with host.database.acquire() as conn:
        return {row["name"]: row["base_digest"] for row in await conn.fetch("SELECT name, base_digest FROM adapters")}


async def test_adapters_that_do_not_fit_stop_a_change_of_base_until_it_is_confirmed(host: Host, tmp_path: Path) -> None:
    old, new = host.model(), host.model("another")
    pool = await host.pool(old)
    host.agent()
    await host.ready()
    await _two_adapters(host, tmp_path, model_digest(old))
    refused = await host.want(pool, str(new))

    async def why() -> str:
        async with host.database.acquire() as conn:
            found: str = await conn.fetchval(
                "SELECT why FROM pool_revisions WHERE revision = $1 AND state = 'failed'", refused
            )
        return found

    refusal = await until(why, host.log)
    assert refusal.startswith(
        "1 adapter version does not fit the new base model and would no longer answer: acme:bad@1 (layer 0 q_proj: "
    )
    assert "good" not in refusal
    await host.ready(1, revision=1)
    assert set((await _bases(host)).values()) == {model_digest(old)}, "nothing has moved"
    allowed = await host.want(pool, str(new), allow_unfit_adapters=True)
    await host.ready(1, revision=allowed)
    assert await _bases(host) == {"good": model_digest(new), "bad": model_digest(old)}


async def test_adapters_stay_with_a_base_that_another_pool_serves(host: Host, tmp_path: Path) -> None:
    old, new = host.model(), host.model("another")
    pool = await host.pool(old)
    await host.pool(old, name="twin")
    host.agent()
    await host.ready()
    await host.ready(name="twin")
    await _two_adapters(host, tmp_path, model_digest(old))
    allowed = await host.want(pool, str(new), allow_unfit_adapters=True)
    await host.ready(1, revision=allowed)
    assert set((await _bases(host)).values()) == {model_digest(old)}
