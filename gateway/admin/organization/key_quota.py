"""Bounds the number of keys and service accounts of a project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.db.organization.keys import num_keys
from gateway.db.organization.service_accounts import num_service_accounts
from gateway.domain.errors import Conflict

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_KEYS = 10_000
MAX_SERVICE_ACCOUNTS = 1_000


async def check_room_for_key(conn: Connection, project_id: str) -> None:
    """Check that a project may have one more key.

    Raises Conflict: when the project has as many keys as it may have.
    """
    if await num_keys(conn, project_id) >= MAX_KEYS:
        raise Conflict(
            f"The project has {MAX_KEYS} keys that are not revoked, the most there can be. Revoke one first.",
            code="too_many_keys",
        )


async def check_room_for_account(conn: Connection, project_id: str) -> None:
    """Check that a project may have one more service account, which comes with a key.

    Raises Conflict: when the project has as many service accounts or keys as it may have.
    """
    await check_room_for_key(conn, project_id)
    if await num_service_accounts(conn, project_id) >= MAX_SERVICE_ACCOUNTS:
        raise Conflict(
            f"The project has {MAX_SERVICE_ACCOUNTS} service accounts, the most there can be. Remove one first.",
            code="too_many_service_accounts",
        )
