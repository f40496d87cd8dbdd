"""The passkeys of people: public keys, by which their holders log in, and the challenges that were answered.

Nothing here is secret: the private keys never leave people's devices.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

from gateway.db.ids import new_id

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class PasskeyRow(msgspec.Struct, frozen=True):
    """A passkey with the facts that are shown to its holder."""

    id: str
    user_id: str
    name: str
    created_at: datetime.datetime
    last_used_at: datetime.datetime | None
    rp_id: str | None
    """The host name that the passkey belongs to; None: not known before its next use."""


class FoundPasskey(msgspec.Struct, frozen=True):
    """A passkey with its public key, by which a login is checked."""

    id: str
    user_id: str
    public_key: bytes
    """The key in COSE's form (RFC 9052)."""
    sign_count: int
    """The authenticator's own count of signatures when last seen; 0 where it does not count."""


_INSERT = """
    INSERT INTO passkeys (id, user_id, credential_id, public_key, sign_count, name, rp_id)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (credential_id) DO NOTHING
    RETURNING id, user_id, name, created_at, last_used_at, rp_id
"""


async def add_passkey(
    conn: Connection, user_id: str, *, credential_id: bytes, public_key: bytes, sign_count: int, name: str, rp_id: str
) -> PasskeyRow | None:
    """Store a passkey of a user. Return None if somebody has a passkey of this credential id."""
    row = await conn.fetchrow(_INSERT, new_id("passkey"), user_id, credential_id, public_key, sign_count, name, rp_id)
    return PasskeyRow(**row) if row else None


_LIST = """
    SELECT id, user_id, name, created_at, last_used_at, rp_id FROM passkeys WHERE user_id = $1 ORDER BY created_at, id
"""


async def list_passkeys(conn: Connection, user_id: str) -> list[PasskeyRow]:
    """Return the passkeys of a user, oldest first."""
    return [PasskeyRow(**row) for row in await conn.fetch(_LIST, user_id)]


_CREDENTIALS = "SELECT credential_id FROM passkeys WHERE user_id = $1"


async def credential_ids(conn: Connection, user_id: str) -> list[bytes]:
    """Return the credential ids of a user's passkeys, by which devices tell that they hold one already."""
    return [row["credential_id"] for row in await conn.fetch(_CREDENTIALS, user_id)]


_GET = """
    SELECT id, user_id, name, created_at, last_used_at, rp_id FROM passkeys WHERE user_id = $1 AND id = $2
    FOR NO KEY UPDATE
"""


async def lock_passkey(conn: Connection, user_id: str, passkey_id: str) -> PasskeyRow | None:
    """Return a passkey of a user, locked until the transaction ends; None where there is none."""
    row = await conn.fetchrow(_GET, user_id, passkey_id)
    return PasskeyRow(**row) if row else None


_RENAME = "UPDATE passkeys SET name = $3 WHERE user_id = $1 AND id = $2"


async def rename_passkey(conn: Connection, user_id: str, passkey_id: str, name: str) -> None:
    """Give a passkey of a user another name."""
    await conn.execute(_RENAME, user_id, passkey_id, name)


_REMOVE = "DELETE FROM passkeys WHERE user_id = $1 AND ($2::text IS NULL OR id = $2)"


async def remove_passkeys(conn: Connection, user_id: str, passkey_id: str | None = None) -> None:
    """Remove one passkey of a user; None: all of them."""
    await conn.execute(_REMOVE, user_id, passkey_id)


_FIND = """
    SELECT p.id, p.user_id, p.public_key, p.sign_count FROM passkeys p JOIN users u ON u.id = p.user_id
    WHERE p.credential_id = $1 AND u.removed_at IS NULL
"""


async def find_passkey(conn: Connection, credential_id: bytes) -> FoundPasskey | None:
    """Return the passkey of a credential id. Nobody is logged in yet, so there is no organization to look within."""
    row = await conn.fetchrow(_FIND, credential_id)
    return FoundPasskey(**row) if row else None


_USED = """
    UPDATE passkeys SET last_used_at = now(), sign_count = greatest(sign_count, $2), rp_id = $3 WHERE id = $1
    RETURNING true
"""


async def note_use(conn: Connection, passkey_id: str, sign_count: int, rp_id: str) -> bool:
    """Record the use of a passkey at the host that it belongs to; return whether the passkey still exists."""
    return bool(await conn.fetchval(_USED, passkey_id, sign_count, rp_id))


class LockedOutUser(msgspec.Struct, frozen=True):
    """A person who needs a second factor and has none but passkeys of other host names."""

    user_id: str
    email: str
    rp_id: str | None
    """One of the host names; None: not known."""


_LOCKED_OUT = """
    SELECT u.id AS user_id, u.email, max(p.rp_id) AS rp_id FROM users u JOIN passkeys p ON p.user_id = u.id
    WHERE ($1::text IS NULL OR u.organization_id = $1) AND u.removed_at IS NULL AND u.totp_confirmed_at IS NULL
      AND (NOT $3 OR u.role = 'owner')
    GROUP BY u.id HAVING NOT bool_or($2 <> '' AND coalesce(p.rp_id, $2) = $2)
    ORDER BY u.email
"""


async def list_locked_out(
    conn: Connection, organization_id: str | None, rp_id: str, *, owners_only: bool
) -> list[LockedOutUser]:
    """Return people without an authenticator whose passkeys all belong to other hosts, in the order of addresses.

    organization_id: None for all organizations. rp_id: the host name of this server; "" where browsers have no
    passkeys for it. owners_only: whether owners alone need a second factor.
    """
    rows = await conn.fetch(_LOCKED_OUT, organization_id, rp_id, owners_only)
    return [LockedOutUser(**row) for row in rows]


_FORGET_OLD = "DELETE FROM passkey_challenges WHERE expires_at < now()"
_USE_CHALLENGE = """
    INSERT INTO passkey_challenges (sha256, expires_at) VALUES ($1, now() + $2::interval)
    ON CONFLICT (sha256) DO NOTHING RETURNING true
"""


async def use_challenge(conn: Connection, sha256: bytes, lifetime: datetime.timedelta) -> bool:
    """Record a challenge as used; return whether it was not used before. After its lifetime it is forgotten.

    sha256: the digest of the challenge.
    """
    await conn.execute(_FORGET_OLD)
    return bool(await conn.fetchval(_USE_CHALLENGE, sha256, lifetime))
