"""A model string leads a tenant to its own adapters alone, and a change is noticed at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from adapters.inspection import BaseShape
from gateway.db.adapters import aliases, shares
from gateway.db.adapters.adapters import remove_adapter
from gateway.db.changes import Change
from gateway.db.pool import Database
from gateway.domain.errors import ModelNotFound
from gateway.domain.routing.bases import Base, Bases
from gateway.domain.tenancy.principal import Principal
from gateway.pools.first_pool import make_pool
from gateway.routing.resolve import Resolver
from tests.gateway.bases import BASE_DIGEST, bases, put_adapter
from tests.gateway.experiments.making import project_key
from tests.gateway.live import Tenant, make_tenant


@pytest.fixture
async def acme(dsn: str) -> Tenant:
    return await make_tenant(dsn, "acme", "pirate", "1")


@pytest.fixture
async def globex(dsn: str) -> Tenant:
    return await make_tenant(dsn, "globex", "poet", "2")


def caller(tenant: Tenant, organization_id: str = "org_default") -> Principal:
    """Return a key of the tenant's project that may use all its models."""
    return Principal(organization_id, tenant.project_id, "key_1", frozenset({"inference"}))


async def label(resolver: Resolver, tenant: Tenant, model: str) -> str | None:
    """Return the label of the adapter that a model string leads to; None where it leads nowhere."""
    try:
        route = await resolver.resolve(caller(tenant), model)
    except ModelNotFound:
        return None
    assert route.adapter is not None
    return route.adapter.label


async def put_content(database: Database, tenant: Tenant, name: str, digest: str) -> None:
    async with database.acquire() as conn:
        await put_adapter(conn, tenant.project_id, name, digest=digest, rank=8, size_bytes=1)


async def share(database: Database, owner: Tenant, name: str, borrower: Tenant) -> None:
    async with database.acquire() as conn:
        adapter_id = await shares.find_own_adapter(conn, owner.project_id, name)
        assert adapter_id is not None
        assert await shares.create_share(conn, adapter_id, name, borrower.project_id) is not None


async def set_alias(database: Database, tenant: Tenant, name: str, adapter: str, version: int) -> None:
    async with database.acquire() as conn:
        adapter_id = await aliases.find_target(conn, tenant.project_id, adapter, version)
        assert adapter_id is not None
        assert await aliases.create_alias(conn, tenant.project_id, name, adapter_id, version)


async def test_each_tenant_reaches_the_base_and_its_own(database: Database, acme: Tenant, globex: Tenant) -> None:
    resolver = Resolver(database, bases(), project_key)
    for tenant in (acme, globex):
        assert (await resolver.resolve(caller(tenant), "tiny")).adapter is None
        found = await resolver.resolve(caller(tenant), f"tiny:{tenant.adapter}")
        assert found.adapter is not None
        assert (found.adapter.ref.tenant, found.adapter.ref.digest) == (tenant.project_id, tenant.digest)
        assert found.adapter.key == found.adapter.ref.key
        assert found.model == found.id == f"tiny:{tenant.adapter}"
    for model in ("tiny:poet", "tiny:none", "tiny:", "other", "other:pirate", "tiny:pirate:x", "tiny:a\0", ""):
        with pytest.raises(ModelNotFound) as missed:
            await resolver.resolve(caller(acme), model)
        assert missed.value.message == f"The model `{model}` does not exist or you do not have access to it."
    assert [route.model for route in await resolver.list_routes(caller(acme))] == ["tiny", "tiny:pirate"]


async def test_whatever_it_is_called_limits_and_bills_know_the_adapter(database: Database, acme: Tenant) -> None:
    await put_content(database, acme, "pirate", "b" * 64)
    await set_alias(database, acme, "bot", "pirate", 1)
    resolver = Resolver(database, bases(), project_key)
    for model, version in (("tiny:pirate", 2), ("tiny:pirate@1", 1), ("tiny:pirate@2", 2), ("bot", 1)):
        route = await resolver.resolve(caller(acme), model)
        assert route.adapter is not None
        assert (route.id, route.model, route.adapter.ref.version) == (model, "tiny:pirate", version)


async def test_a_resolved_name_is_cached_until_a_change_is_announced(database: Database, acme: Tenant) -> None:
    resolver = Resolver(database, bases(), project_key)
    assert await label(resolver, acme, "tiny:pirate") == "pirate@1"
    await put_content(database, acme, "pirate", "b" * 64)
    assert await label(resolver, acme, "tiny:pirate") == "pirate@1"
    resolver.changed(Change(1, "api_keys", "key", acme.project_id))
    resolver.changed(Change(2, "adapters", "adpt", "proj_other"))
    assert await label(resolver, acme, "tiny:pirate") == "pirate@1"
    resolver.changed(Change(3, "adapters", "adpt", acme.project_id))
    assert await label(resolver, acme, "tiny:pirate") == "pirate@2"
    async with database.acquire() as conn:
        await remove_adapter(conn, acme.project_id, "pirate")
    resolver.changed(None)
    assert await label(resolver, acme, "tiny:pirate") is None


async def test_a_moved_alias_and_an_ended_share_are_forgotten(database: Database, acme: Tenant, globex: Tenant) -> None:
    await put_content(database, acme, "pirate", "b" * 64)
    await set_alias(database, acme, "bot", "pirate", 1)
    await share(database, acme, "pirate", globex)
    resolver = Resolver(database, bases(), project_key)
    assert await label(resolver, acme, "bot") == "pirate@1"
    assert await label(resolver, globex, "tiny:pirate") == "pirate@2"
    async with database.acquire() as conn:
        adapter_id = await aliases.find_target(conn, acme.project_id, "pirate", 2)
        assert adapter_id is not None
        await aliases.move_alias(conn, acme.project_id, "bot", adapter_id, 2)
        await shares.remove_share(conn, adapter_id, globex.project_id)
    resolver.changed(Change(1, "model_aliases", "alias", acme.project_id))
    assert await label(resolver, acme, "bot") == "pirate@2"
    resolver.changed(Change(2, "adapter_shares", "share", globex.project_id))
    assert await label(resolver, globex, "tiny:pirate") is None


async def test_a_change_of_the_owners_is_one_of_the_borrowers(database: Database, acme: Tenant, globex: Tenant) -> None:
    await share(database, acme, "pirate", globex)
    resolver = Resolver(database, bases(), project_key)
    assert await label(resolver, globex, "tiny:pirate") == "pirate@1"
    await put_content(database, acme, "pirate", "b" * 64)
    resolver.changed(Change(1, "adapters", "adpt", acme.project_id))
    assert await label(resolver, globex, "tiny:pirate") == "pirate@2"


async def test_an_answer_that_a_change_overtook_is_not_remembered(database: Database, acme: Tenant) -> None:
    class OvertakenDatabase:
        """A database in which something changes whenever it is read."""

        @asynccontextmanager
        async def acquire(self) -> AsyncIterator[Any]:
            async with database.acquire() as conn:
                yield conn
                resolver.changed(Change(1, "adapters", "adpt", "proj_other"))

    resolver = Resolver(OvertakenDatabase(), bases(), project_key)  # type: ignore[arg-type]
    assert await label(resolver, acme, "tiny:pirate") == "pirate@1"
    await put_content(database, acme, "pirate", "b" * 64)
    assert await label(resolver, acme, "tiny:pirate") == "pirate@2"


_ALIAS_OF_POOL = """
    UPDATE model_aliases SET pool_id = (SELECT id FROM pools WHERE name = $1) WHERE project_id = $2 AND name = 'bot'
"""


async def test_a_version_whose_pool_was_chosen_stays_there_while_it_can(database: Database, acme: Tenant) -> None:
    """Two pools serve the base: the older one answers by default."""
    await set_alias(database, acme, "bot", "pirate", 1)
    shape = BaseShape({}, 1)
    both = [Base(name, BASE_DIGEST, shape) for name in ("tiny", "tiny-fast")]
    async with database.acquire() as conn, conn.transaction():
        assert await make_pool(
            conn, "tiny-fast", model="demo", folder=Path("/models/demo"), base_digest=BASE_DIGEST, address="ipc:///none"
        )
    resolver = Resolver(database, Bases(both), project_key)
    assert (await resolver.resolve(caller(acme), "bot")).base == "tiny"
    async with database.acquire() as conn:
        await conn.execute(_ALIAS_OF_POOL, "tiny-fast", acme.project_id)
    resolver.changed(None)
    found = await resolver.resolve(caller(acme), "bot")
    assert (found.base, found.model) == ("tiny-fast", "tiny-fast:pirate")
    resolver.bases.replace([both[0], Base("tiny-fast", "f" * 64, shape)], {})
    resolver.changed(None)
    assert (await resolver.resolve(caller(acme), "bot")).base == "tiny"
