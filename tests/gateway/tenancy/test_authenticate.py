"""A key opens its own tenant from its creation to its revocation, which holds within one second."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import time
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import asyncpg
import pytest

from gateway.db.organization import keys, organizations, projects
from gateway.db.pool import LISTENER_NAME, Database
from gateway.domain.errors import InvalidApiKey, Overloaded, PermissionDenied
from gateway.domain.tenancy.keys import NewKey, new_key
from gateway.tenancy.authenticate import Authenticator, require_scope
from tests.patience import PATIENCE_S, least

REVOKED_WITHIN_S = 1.0
# Other gateways of the test run listen too, each on its own database.
LISTENERS = "FROM pg_stat_activity WHERE application_name = $1 AND datname = $2"
FIND_LISTENERS = f"SELECT pid {LISTENERS}"
TERMINATE_LISTENERS = f"SELECT pg_terminate_backend(pid, 5000) {LISTENERS}"


class Tenant:
    """A project, with functions that create and revoke its keys."""

    def __init__(self, database: Database, organization_id: str, project_id: str) -> None:
        self.database = database
        self.organization_id = organization_id
        self.project_id = project_id

    async def store(self, key: NewKey, expires_at: datetime.datetime | None = None) -> keys.KeyRow:
        async with self.database.acquire() as conn:
            row = await keys.create_key(
                conn,
                organization_id=self.organization_id,
                project_id=self.project_id,
                name="test",
                public=key.public,
                sha256=key.sha256,
                scopes=["inference"],
                expires_at=expires_at,
            )
        assert row is not None
        return row

    async def revoke(self, key_id: str) -> None:
        async with self.database.acquire() as conn:
            assert await keys.revoke_key(conn, self.project_id, key_id) is not None


@pytest.fixture
async def tenant(database: Database) -> Tenant:
    async with database.acquire() as conn:
        organization = await organizations.ensure_organization(conn, "default")
        project = await projects.create_project(conn, organization.id, "acme")
    assert project is not None
    return Tenant(database, organization.id, project.id)


@pytest.fixture
async def authenticator(dsn: str) -> AsyncIterator[Authenticator]:
    async with await Database.connect(dsn, min_size=2, max_size=2) as database:
        authenticator = Authenticator(database)
        await authenticator.start()
        yield authenticator
        await authenticator.stop()


def bearer(key: NewKey) -> str:
    return f"Bearer {key.secret}"


async def seconds_until(is_good: bool, authenticator: Authenticator, key: NewKey) -> float:
    """Wait until a key is accepted, or until it is refused; return the seconds.

    is_good: True: until it is accepted.
    """
    started = time.monotonic()
    async with asyncio.timeout(PATIENCE_S):
        while await opens(authenticator, key) is not is_good:  # noqa: ASYNC110 - what it asks has no event
            await asyncio.sleep(0.005)
    return time.monotonic() - started


async def opens(authenticator: Authenticator, key: NewKey) -> bool:
    try:
        await authenticator.authenticate(bearer(key))
    except InvalidApiKey:
        return False
    return True


async def seconds_until_revoked(authenticator: Authenticator, tenant: Tenant) -> float:
    """Use a new key, revoke it, and return the seconds until it is refused."""
    key = new_key()
    row = await tenant.store(key)
    assert await opens(authenticator, key) or await seconds_until(True, authenticator, key)
    await tenant.revoke(row.id)
    return await seconds_until(False, authenticator, key)


async def test_a_key_gives_its_owner(authenticator: Authenticator, tenant: Tenant) -> None:
    key = new_key()
    row = await tenant.store(key)
    for _ in range(2):
        principal = await authenticator.authenticate(bearer(key))
        assert principal.organization_id == tenant.organization_id
        assert principal.project_id == tenant.project_id
        assert principal.api_key_id == row.id
    require_scope(principal, "inference")
    with pytest.raises(PermissionDenied, match="admin_write"):
        require_scope(principal, "admin_write")


async def test_a_revocation_holds_within_a_second(authenticator: Authenticator, tenant: Tenant) -> None:
    other = new_key()
    await tenant.store(other)
    took_s = await least(lambda: seconds_until_revoked(authenticator, tenant), REVOKED_WITHIN_S)
    assert took_s < REVOKED_WITHIN_S
    await authenticator.authenticate(bearer(other))


async def test_a_revocation_holds_within_a_second_while_nothing_can_listen(
    authenticator: Authenticator, tenant: Tenant, postgres: str, dsn: str
) -> None:
    server = await asyncpg.connect(postgres)
    try:
        # Connections that are open stay; the listener, once terminated, cannot come back.
        name = urlsplit(dsn).path[1:]
        await server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        terminated = await server.fetch(TERMINATE_LISTENERS, LISTENER_NAME, name)
    finally:
        await server.close()
    assert len(terminated) == 1
    took_s = await least(lambda: seconds_until_revoked(authenticator, tenant), REVOKED_WITHIN_S)
    assert took_s < REVOKED_WITHIN_S


async def test_listening_resumes_after_its_connection_was_killed(
    authenticator: Authenticator, tenant: Tenant, dsn: str
) -> None:
    name = urlsplit(dsn).path[1:]
    async with tenant.database.acquire() as conn:
        (first,) = [row["pid"] for row in await conn.fetch(FIND_LISTENERS, LISTENER_NAME, name)]
        await conn.fetch(TERMINATE_LISTENERS, LISTENER_NAME, name)
        async with asyncio.timeout(PATIENCE_S):
            pids = [first]
            while pids in ([], [first]):
                pids = [row["pid"] for row in await conn.fetch(FIND_LISTENERS, LISTENER_NAME, name)]


async def test_a_key_works_at_once_even_if_it_was_tried_before_it_existed(
    authenticator: Authenticator, tenant: Tenant
) -> None:
    async def measure() -> float:
        key = new_key()
        assert not await opens(authenticator, key)
        await tenant.store(key)
        return await seconds_until(True, authenticator, key)

    assert await least(measure, REVOKED_WITHIN_S) < REVOKED_WITHIN_S


async def test_an_expired_key_is_refused_even_when_it_is_cached(authenticator: Authenticator, tenant: Tenant) -> None:
    lives_s = itertools.chain((0.3,), itertools.repeat(5.0))  # long enough to be used once on a busy machine

    async def measure() -> float:
        key, life = new_key(), datetime.timedelta(seconds=next(lives_s))
        expires_at = datetime.datetime.now(datetime.UTC) + life
        await tenant.store(key, expires_at=expires_at)
        if not await opens(authenticator, key):
            assert datetime.datetime.now(datetime.UTC) >= expires_at
            return float("inf")
        await seconds_until(False, authenticator, key)
        late_s = (datetime.datetime.now(datetime.UTC) - expires_at).total_seconds()
        assert late_s >= 0
        return late_s

    assert await least(measure, 0.7) < 0.7


NO_KEYS = [
    (None, "You didn't provide an API key"),
    ("", "You didn't provide an API key"),
    ("Bearer ", "You didn't provide an API key"),
    ("Basic YTpi", "You didn't provide an API key"),
    (new_key().secret, "You didn't provide an API key"),
    ("Bearer sk-mine", "Incorrect API key provided."),
    ("Bearer ' OR 1=1 --", "Incorrect API key provided."),
    (f"Bearer {new_key().secret[:-1]}", "Incorrect API key provided."),
]


async def test_a_malformed_key_is_refused_without_repeating_it(authenticator: Authenticator) -> None:
    for header, message in NO_KEYS:
        with pytest.raises(InvalidApiKey) as refused:
            await authenticator.authenticate(header)
        assert refused.value.message.startswith(message)
        assert not any(secret in refused.value.message for secret in ("sk-", "YTpi", "OR 1=1"))
        assert (refused.value.status, refused.value.code) == (401, "invalid_api_key")


async def test_an_unknown_key_is_named_by_its_public_part_only(authenticator: Authenticator) -> None:
    key = new_key()
    with pytest.raises(InvalidApiKey) as refused:
        await authenticator.authenticate(bearer(key))
    assert refused.value.message == f"Incorrect API key provided: {key.public}***."


async def test_the_last_use_is_written_when_the_gateway_stops(authenticator: Authenticator, tenant: Tenant) -> None:
    key = new_key()
    row = await tenant.store(key)
    await authenticator.authenticate(bearer(key))
    await authenticator.stop()
    async with tenant.database.acquire() as conn:
        after = await keys.get_key(conn, tenant.project_id, row.id)
        assert after is not None and after.last_used_at is not None
        await keys.touch_keys(conn, {row.id: after.last_used_at + datetime.timedelta(seconds=59)})
        assert await keys.get_key(conn, tenant.project_id, row.id) == after


async def test_without_the_database_known_keys_stay_good_and_others_are_told_to_come_back(
    dsn: str, tenant: Tenant
) -> None:
    key = new_key()
    await tenant.store(key)
    database = await Database.connect(dsn)
    authenticator, told = Authenticator(database), asyncio.Event()
    authenticator.changes.subscribe(lambda _: told.set())
    await authenticator.start()
    try:
        await told.wait()  # the first change stands for all before it listened
        await authenticator.authenticate(bearer(key))
        await database.close()
        await authenticator.authenticate(bearer(key))
        with pytest.raises(Overloaded) as refused:
            await authenticator.authenticate(bearer(new_key()))
        assert refused.value.retry_after_s is not None
    finally:
        await authenticator.stop()
