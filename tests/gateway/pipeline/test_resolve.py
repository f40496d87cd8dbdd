"""A model string leads a tenant to its own adapters only, and a change is noticed at once."""

from __future__ import annotations

import pytest

from gateway.db.adapter_versions import put_adapter
from gateway.db.adapters import remove_adapter
from gateway.db.changes import Change
from gateway.db.pool import Database
from gateway.errors import ModelNotFound
from gateway.routing.resolve import Resolver
from tests.gateway.live import make_tenant


async def test_each_tenant_reaches_the_base_and_its_own(database: Database, dsn: str):
    acme = await make_tenant(dsn, "acme", "pirate", "1")
    globex = await make_tenant(dsn, "globex", "poet", "2")
    resolver = Resolver(database, "tiny")
    for tenant in (acme, globex):
        assert (await resolver.resolve(tenant.project_id, "tiny")).adapter is None
        found = await resolver.resolve(tenant.project_id, f"tiny:{tenant.adapter}")
        assert found.adapter is not None
        assert found.adapter.ref.digest == tenant.digest
        assert found.model == f"tiny:{tenant.adapter}"
    for model in ("tiny:poet", "tiny:none", "tiny:", "other", "other:pirate", "tiny:pirate:x", "tiny:a\0", ""):
        with pytest.raises(ModelNotFound) as missed:
            await resolver.resolve(acme.project_id, model)
        assert missed.value.message == f"The model `{model}` does not exist or you do not have access to it."
    assert [route.model for route in await resolver.list_routes(acme.project_id)] == ["tiny", "tiny:pirate"]


async def test_what_was_found_is_remembered_until_a_change_is_told(database: Database, dsn: str):
    acme = await make_tenant(dsn, "acme", "pirate", "1")
    resolver = Resolver(database, "tiny")
    old = await resolver.resolve(acme.project_id, "tiny:pirate")
    async with database.acquire() as conn:
        await put_adapter(conn, acme.project_id, "pirate", digest="b" * 64, rank=8, size_bytes=1)
    assert await resolver.resolve(acme.project_id, "tiny:pirate") == old
    resolver.changed(Change(1, "api_keys", "key", acme.project_id))
    assert await resolver.resolve(acme.project_id, "tiny:pirate") == old
    resolver.changed(Change(2, "adapters", "adpt", acme.project_id))
    new = await resolver.resolve(acme.project_id, "tiny:pirate")
    assert new.adapter is not None
    assert (new.adapter.ref.version, new.adapter.ref.digest) == (2, "b" * 64)
    async with database.acquire() as conn:
        await remove_adapter(conn, acme.project_id, "pirate")
    resolver.changed(None)
    with pytest.raises(ModelNotFound):
        await resolver.resolve(acme.project_id, "tiny:pirate")
