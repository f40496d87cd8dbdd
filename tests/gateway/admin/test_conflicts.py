"""Concurrent changes wait for each other in one order; where they cannot, one of them is asked to try again."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from gateway.db.pool import Database
from tests.gateway.admin.adapter_uploads import upload
from tests.gateway.admin_server import AdminServer, write_adapter
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from gateway.db.pool import Connection

HOLD_CHANGES = "UPDATE installation SET change_version = change_version"
NUM_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def until_waiting(database: Database, num: int) -> None:
    """Wait until `num` transactions wait for a lock."""
    async with asyncio.timeout(PATIENCE_S), database.acquire() as conn:
        while True:
            if await conn.fetchval(NUM_WAITING) >= num:
                return
            await asyncio.sleep(0.005)


async def member_with_key(
    server: AdminServer, operator: httpx.AsyncClient, project: str, email: str
) -> tuple[str, str]:
    """Make a user with a key; return the ids of both."""
    user = (await server.user(email, None))["id"]
    await operator.post(f"{project}/users", json={"user_id": user, "role": "admin"})
    async with server.person(email) as person:
        return user, (await person.post(f"{project}/api_keys", json={})).json()["id"]


async def test_changes_of_the_same_keys_never_wait_for_each_other_in_a_circle(
    server: AdminServer, operator: httpx.AsyncClient
) -> None:
    """Run changes in pairs. Each waits for the row that every change updates first, and then both go on together."""
    database = server.services.database
    meets: list[Callable[[str, str, str], tuple[str, dict[str, Any]]]] = [
        lambda project, user, key: (f"{project}/api_keys/{key}", {"models": ["tiny"]}),
        lambda project, user, key: (f"{project}/archive", {}),
        lambda project, user, key: (f"{project}/users/{user}", {"role": "viewer"}),
        lambda project, user, key: (f"/users/{user}", {"role": "viewer"}),
    ]
    for number, removed_first in itertools.product(range(len(meets)), (True, False)):
        name = f"{number}-{'first' if removed_first else 'second'}"
        project = f"/projects/{(await operator.post('/projects', json={'name': name})).json()['id']}"
        user, key = await member_with_key(server, operator, project, f"{name}@example.com")
        changes: list[tuple[str, str, Any]] = [
            ("DELETE", f"/users/{user}", None),
            ("POST", *meets[number](project, user, key)),
        ]
        async with database.transaction() as conn:
            await conn.execute(HOLD_CHANGES)
            meeting = []
            for method, path, body in changes if removed_first else reversed(changes):
                meeting.append(asyncio.create_task(operator.request(method, path, json=body)))
                await until_waiting(database, len(meeting))
        statuses = [reply.status_code for reply in await asyncio.gather(*meeting)]
        assert statuses == [200, 404 if removed_first and number >= 2 else 200], (name, statuses)
        assert (await operator.get(f"/api_keys/{key}")).json()["revoked_at"] is not None, name


async def test_an_upload_and_a_change_of_what_bounds_it_never_wait_for_each_other_in_a_circle(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    """The upload and the change both wait for the row that every change updates first, and then go on together."""
    database, limit = server.services.database, {"unit": "storage_bytes", "max": 1 << 20}
    await operator.post("/limits", json=limit)
    folder = write_adapter(tmp_path / "pirate")
    async with database.transaction() as conn:
        await conn.execute(HOLD_CHANGES)
        uploading = asyncio.create_task(upload(operator, acme, "pirate", folder))
        await until_waiting(database, 1)
        changing = asyncio.create_task(operator.post("/limits", json=limit | {"max": 1 << 21}))
        await until_waiting(database, 2)
    replies = await asyncio.gather(uploading, changing)
    assert [reply.status_code for reply in replies] == [200, 200], [reply.text for reply in replies]


async def test_who_is_stopped_in_a_deadlock_is_told_to_come_again(
    server: AdminServer, operator: httpx.AsyncClient, acme: str
) -> None:
    database = server.services.database
    key = (await operator.post(f"{acme}/api_keys", json={})).json()["id"]
    async with database.transaction() as conn:
        await lose_no_deadlock(conn)
        await conn.execute(HOLD_CHANGES)
        change = asyncio.create_task(operator.post(f"{acme}/api_keys/{key}", json={"models": ["tiny"]}))
        await until_waiting(database, 1)  # the waiting transaction has locked the key
        await conn.execute("UPDATE api_keys SET name = 'other' WHERE id = $1", key)
    reply = await change
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "server_is_overloaded")
    assert reply.headers["retry-after"] == "1"
    shown = (await operator.get(f"{acme}/api_keys/{key}")).json()
    assert (shown["name"], shown["models"]) == ("other", None)


async def lose_no_deadlock(conn: Connection) -> None:
    """Make this connection's transaction survive a deadlock: the other one checks for deadlocks earlier, and is
    aborted.
    """
    await conn.execute("SET LOCAL deadlock_timeout = '60s'")
