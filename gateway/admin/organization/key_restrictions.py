"""Keeps keys that are restricted to networks or to a date from giving rights that are less restricted.

Else a thief of such a key would make themselves a password, a role or a key that works from anywhere, for ever. Keys
without restrictions, such as the operator's own on the server, and people are not concerned.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gateway.admin.paging import wrong_value
from gateway.db.organization import keys
from gateway.domain.errors import PermissionDenied
from gateway.domain.tenancy.actor import Actor
from gateway.domain.tenancy.addresses import Network, is_within

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class KeyRestrictions(msgspec.Struct, frozen=True):
    """The bounds of the caller's key, and of every key that it makes. None: unbounded."""

    expires_at: datetime.datetime | None = None
    ip_allow: Sequence[Network] | None = None

    @property
    def is_restricted(self) -> bool:
        """Tell whether the key is restricted to networks or to a date."""
        return self.expires_at is not None or self.ip_allow is not None


async def bounds_of(conn: Connection, caller: Actor) -> KeyRestrictions:
    """Return the restrictions of the caller. A person or a project's key has none."""
    own = await keys.get_admin_key(conn, caller.organization_id, caller.id) if caller.kind == "api_key" else None
    return KeyRestrictions() if own is None else KeyRestrictions(own.expires_at, own.ip_allow)


async def check_not_less_restricted(
    conn: Connection, caller: Actor, expires_at: datetime.datetime | None, ip_allow: Sequence[Network] | None
) -> None:
    """Check that a key which the caller makes, changes or reads is no less restricted than the caller's own key.

    expires_at: the end of the other key; None: it never ends. ip_allow: the networks from which the other key works;
    None: from all.

    Raises InvalidRequest: when the caller is a key that ends before the other one, or does not work where the other one
    would.
    """
    own = await bounds_of(conn, caller)
    if own.expires_at is not None and (expires_at is None or expires_at > own.expires_at):
        raise wrong_value("expires_at", "the new key must not outlive the key that creates it")
    if own.ip_allow is not None and (ip_allow is None or not is_within(ip_allow, own.ip_allow)):
        raise wrong_value("ip_allowlist", "the key that creates the new key may not be used from all of these networks")


async def check_may_admit(conn: Connection, caller: Actor) -> None:
    """Check that the caller may let people in, with a password or a role, which hold from anywhere and without end.

    Raises PermissionDenied: when the caller is a key that is restricted to networks or to a date.
    """
    if (await bounds_of(conn, caller)).is_restricted:
        raise PermissionDenied(
            "A key that is held to networks or to a date cannot give people passwords or roles. Log in as a person.",
            code="held_key",
        )
