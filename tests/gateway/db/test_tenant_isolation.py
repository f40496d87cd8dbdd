"""Every function of the database room that takes a tenant sees and changes that tenant's rows alone."""

from __future__ import annotations

import datetime

import msgspec
import pytest

from gateway.db.adapters import adapters, contents
from gateway.db.ledger import usage
from gateway.db.ledger.usage import UsageEvent
from gateway.db.organization import keys, organizations, projects
from gateway.db.pool import Database
from gateway.domain.tenancy.keys import new_key
from tests.gateway.bases import put_adapter

DIGEST_A = "a" * 64
DIGEST_B = "b" * 64
NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.UTC)


class Tenants(msgspec.Struct, frozen=True):
    """Two projects of one organization, each with a key and an adapter `pirate`; and another organization."""

    organization: str
    other_organization: str
    acme: str
    globex: str
    acme_key: str
    globex_key: str


@pytest.fixture
async def tenants(database: Database) -> Tenants:
    async with database.acquire() as conn:
        organization = (await organizations.ensure_organization(conn, "default")).id
        other = (await organizations.ensure_organization(conn, "other")).id
        ids, key_ids = [], []
        for name, digest in (("acme", DIGEST_A), ("globex", DIGEST_B)):
            project = await projects.create_project(conn, organization, name)
            assert project is not None
            made = new_key()
            key = await keys.create_key(
                conn,
                organization_id=organization,
                project_id=project.id,
                name="default",
                public=made.public,
                sha256=made.sha256,
                scopes=["inference"],
            )
            assert key is not None
            await put_adapter(conn, project.id, "pirate", digest=digest, rank=8, size_bytes=1000)
            ids.append(project.id)
            key_ids.append(key.id)
    return Tenants(organization, other, *ids, *key_ids)


def usage_event(request_id: str, project_id: str, attempt: int = 0) -> UsageEvent:
    return UsageEvent(
        request_id=request_id,
        attempt=attempt,
        organization_id="org_x",
        project_id=project_id,
        api_key_id="key_x",
        endpoint="/v1/chat/completions",
        model="base:pirate",
        adapter_id="adpt_x",
        adapter_version=1,
        adapter_digest=DIGEST_A,
        stream=True,
        prompt_tokens=10,
        cached_tokens=4,
        completion_tokens=5,
        discarded_tokens=1,
        finish_reason="stop",
        queue_ms=0.5,
        prefill_ms=1.5,
        decode_ms=2.5,
        ttft_ms=None,
        latency_ms=9.0,
        adapter_load_bytes=123,
        created_at=NOW,
        finished_at=NOW,
    )


async def test_projects_belong_to_an_organization(database: Database, tenants: Tenants) -> None:
    async with database.acquire() as conn:
        assert await projects.get_project(conn, tenants.other_organization, tenants.acme) is None
        assert await projects.find_project(conn, tenants.other_organization, "acme") is None
        assert await projects.list_projects(conn, tenants.other_organization) == []
        assert await projects.create_project(conn, tenants.organization, "acme") is None
        elsewhere = await projects.create_project(conn, tenants.other_organization, "acme")
        assert elsewhere is not None
        listed = await projects.list_projects(conn, tenants.organization)
    assert [project.name for project in listed] == ["acme", "globex"]


async def test_lists_go_on_after_an_id(database: Database, tenants: Tenants) -> None:
    async with database.acquire() as conn:
        first = await projects.list_projects(conn, tenants.organization, limit=1)
        rest = await projects.list_projects(conn, tenants.organization, after=first[0].id)
    assert [project.name for project in first + rest] == ["acme", "globex"]


async def test_keys_belong_to_a_project(database: Database, tenants: Tenants) -> None:
    async with database.acquire() as conn:
        assert [key.id for key in await keys.list_keys(conn, tenants.acme)] == [tenants.acme_key]
        assert await keys.get_key(conn, tenants.acme, tenants.globex_key) is None
        assert await keys.revoke_key(conn, tenants.acme, tenants.globex_key) is None
        untouched = await keys.get_key(conn, tenants.globex, tenants.globex_key)
    assert untouched is not None and untouched.revoked_at is None


async def test_a_key_is_stored_once_and_revoked_once(database: Database, tenants: Tenants) -> None:
    made = new_key()
    async with database.acquire() as conn:
        stored = [
            await keys.create_key(
                conn,
                organization_id=tenants.organization,
                project_id=tenants.acme,
                name="twice",
                public=made.public,
                sha256=made.sha256,
                scopes=["inference"],
            )
            for _ in range(2)
        ]
        assert stored[0] is not None and stored[1] is None
        first = await keys.revoke_key(conn, tenants.acme, stored[0].id)
        second = await keys.revoke_key(conn, tenants.acme, stored[0].id)
        assert await keys.find_usable_key(conn, made.sha256) is None
    assert first is not None and first.revoked_at is not None
    assert first == second


async def test_adapters_belong_to_a_project(database: Database, tenants: Tenants) -> None:
    async with database.acquire() as conn:
        mine = await adapters.find_adapter(conn, tenants.acme, "pirate")
        theirs = await adapters.find_adapter(conn, tenants.globex, "pirate")
        assert await adapters.list_adapters(conn, tenants.acme) == [mine]
        assert await adapters.remove_adapter(conn, tenants.acme, "pirate")
        assert await adapters.find_adapter(conn, tenants.globex, "pirate") == theirs
        assert await adapters.list_adapters(conn, tenants.acme) == []
    assert mine is not None and theirs is not None
    assert (mine.digest, theirs.digest) == (DIGEST_A, DIGEST_B)


async def test_adapter_versions_count_changes_of_content(database: Database, tenants: Tenants) -> None:
    async with database.acquire() as conn:
        same, changed_same = await put_adapter(conn, tenants.acme, "pirate", digest=DIGEST_A, rank=8, size_bytes=1000)
        other, changed_other = await put_adapter(conn, tenants.acme, "pirate", digest=DIGEST_B, rank=4, size_bytes=500)
        assert await adapters.find_adapter(conn, tenants.acme, "pirate") == other
    assert (same.version, changed_same) == (1, False)
    assert (other.version, other.rank, other.size_bytes, changed_other) == (2, 4, 500, True)
    assert (other.id, other.created_at) == (same.id, same.created_at)


async def test_a_removed_name_is_free_and_starts_a_new_adapter(database: Database, tenants: Tenants) -> None:
    async with database.acquire() as conn:
        before = await adapters.find_adapter(conn, tenants.acme, "pirate")
        assert await adapters.remove_adapter(conn, tenants.acme, "pirate")
        assert not await adapters.remove_adapter(conn, tenants.acme, "pirate")
        after, changed = await put_adapter(conn, tenants.acme, "pirate", digest=DIGEST_A, rank=8, size_bytes=1000)
    assert before is not None and changed
    assert (after.version, after.id == before.id) == (1, False)


async def test_content_is_unreferenced_only_when_no_tenant_uses_it(database: Database, tenants: Tenants) -> None:
    async with database.acquire() as conn:
        await put_adapter(conn, tenants.globex, "copy", digest=DIGEST_A, rank=8, size_bytes=1000)
        await adapters.remove_adapter(conn, tenants.acme, "pirate")
        both = {DIGEST_A: {tenants.globex}, DIGEST_B: {tenants.globex}}
        assert await contents.content_owners(conn, [DIGEST_A, DIGEST_B]) == both
        await adapters.remove_adapter(conn, tenants.globex, "copy")
        assert await contents.content_owners(conn, [DIGEST_A, DIGEST_B]) == {DIGEST_B: {tenants.globex}}


async def test_usage_is_kept_exactly_and_once_per_attempt(database: Database, tenants: Tenants) -> None:
    events = [usage_event("req_1", tenants.acme), usage_event("req_1", tenants.acme, attempt=1)]
    theirs = usage_event("req_2", tenants.globex)
    async with database.acquire() as conn:
        assert await usage.write_usage_events(conn, []) == set()
        assert await usage.write_usage_events(conn, [*events, theirs]) == {("req_1", 0), ("req_1", 1), ("req_2", 0)}
        again = [events[0], usage_event("req_3", tenants.acme)]
        assert await usage.write_usage_events(conn, again) == {("req_3", 0)}
        assert await usage.list_usage_events(conn, tenants.acme, limit=2) == events
        assert await usage.list_usage_events(conn, tenants.globex, limit=10) == [theirs]


async def test_the_installation_keeps_its_id(database: Database) -> None:
    async with database.acquire() as conn:
        assert len(await organizations.installation_id(conn)) == 32
        assert await organizations.installation_id(conn) == await organizations.installation_id(conn)
