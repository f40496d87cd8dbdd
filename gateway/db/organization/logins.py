"""Credentials and logins of people: the password's hash, the one-time secret, failed attempts, and valid logins.

All times are PostgreSQL's, so that every gateway agrees on them.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

from gateway.db.ids import new_id
from gateway.domain.tenancy.principal import Role

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class Credentials(msgspec.Struct, frozen=True):
    """The credentials of one user: password, one-time secret and recovery codes."""

    id: str
    organization_id: str
    email: str
    name: str
    role: Role | None
    password_hash: str | None
    totp_secret: bytes | None
    """The one-time secret, which counts once totp_confirmed."""
    totp_content_key: str | None
    """The id of the content key that encrypted totp_secret; None: totp_secret is in clear."""
    totp_confirmed: bool
    totp_last_step: int
    """The last time step whose code was used."""

    def __repr__(self) -> str:
        return f"Credentials(id={self.id!r})"


class LoginRow(msgspec.Struct, frozen=True):
    """A valid login of a person, and the browser and address that it was made from."""

    id: str
    user_id: str
    created_at: datetime.datetime
    last_used_at: datetime.datetime
    expires_at: datetime.datetime
    address: str
    user_agent: str


class LoggedInUser(msgspec.Struct, frozen=True):
    """The user of a valid login."""

    login_id: str
    user_id: str
    organization_id: str
    email: str
    role: Role | None
    has_totp: bool
    """True if the user has a confirmed authenticator."""
    by_passkey: bool
    """True if the login was made by a passkey, or has added one."""
    has_passkey: bool
    has_passkey_here: bool
    """True if the user has a passkey of the host name of this server, or one whose host is not known."""
    expires_at: datetime.datetime
    memberships: dict[str, Role]
    """The user's roles in single projects."""


_BY_EMAIL = """
    SELECT id, organization_id, email, name, role, password_hash, totp_secret, totp_content_key,
           totp_confirmed_at IS NOT NULL AS totp_confirmed, totp_last_step
    FROM users WHERE email = $1 AND removed_at IS NULL
"""


async def find_credentials(conn: Connection, email: str) -> Credentials | None:
    """Return the credentials of the user with this address in lower case.

    Nobody is logged in yet, so there is no organization to look within.
    """
    row = await conn.fetchrow(_BY_EMAIL, email)
    return Credentials(**row) if row else None


_BY_ID = """
    SELECT id, organization_id, email, name, role, password_hash, totp_secret, totp_content_key,
           totp_confirmed_at IS NOT NULL AS totp_confirmed, totp_last_step
    FROM users WHERE id = $1 AND removed_at IS NULL
"""


async def get_credentials(conn: Connection, user_id: str) -> Credentials | None:
    """Return the credentials of a person; None where there is no such person."""
    row = await conn.fetchrow(_BY_ID, user_id)
    return Credentials(**row) if row else None


async def now_s(conn: Connection) -> float:
    """Return PostgreSQL's Unix time in seconds."""
    return float(await conn.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8"))


_SET_PASSWORD = "UPDATE users SET password_hash = $2 WHERE id = $1"  # noqa: S105 - a statement, not a password


async def set_password_hash(conn: Connection, user_id: str, password_hash: str) -> None:
    """Set the hash of a person's password."""
    await conn.execute(_SET_PASSWORD, user_id, password_hash)


_SET_TOTP = """
    UPDATE users SET totp_secret = $2, totp_content_key = $3, totp_confirmed_at = NULL, totp_last_step = 0,
        recovery_codes = '{}'
    WHERE id = $1
"""


async def set_totp_secret(
    conn: Connection, user_id: str, secret: bytes | None, *, content_key: str | None = None
) -> None:
    """Store the seed of an authenticator, which is not required before it is confirmed; None removes it.

    content_key: the id of the key that the seed is encrypted with.
    """
    await conn.execute(_SET_TOTP, user_id, secret, content_key)


_CONFIRM_TOTP = """
    UPDATE users SET totp_confirmed_at = now(), recovery_codes = $2 WHERE id = $1 AND totp_secret IS NOT NULL
"""


async def confirm_totp(conn: Connection, user_id: str, recovery_codes: list[bytes]) -> None:
    """Require a user's authenticator from now on. recovery_codes: the digests of codes that may replace its own."""
    await conn.execute(_CONFIRM_TOTP, user_id, recovery_codes)


_USE_RECOVERY_CODE = """
    UPDATE users SET recovery_codes = array_remove(recovery_codes, $2) WHERE id = $1 AND $2 = ANY (recovery_codes)
    RETURNING cardinality(recovery_codes)
"""


async def use_recovery_code(conn: Connection, user_id: str, digest: bytes) -> int | None:
    """Use up a user's recovery code; return how many are left, None where the user has no such code."""
    left: int | None = await conn.fetchval(_USE_RECOVERY_CODE, user_id, digest)
    return left


_USE_STEP = "UPDATE users SET totp_last_step = $2 WHERE id = $1 AND totp_last_step < $2"


async def use_totp_step(conn: Connection, user_id: str, step: int) -> bool:
    """Record a time step as used; return whether no code of this step or a later one was used before.

    See RFC 6238, section 5.2.
    """
    return (await conn.execute(_USE_STEP, user_id, step)) == "UPDATE 1"


_LOCKED_S = """
    SELECT greatest(0, extract(epoch FROM locked_until - clock_timestamp())::float8)
    FROM login_failures WHERE identity = $1
"""


async def locked_for_s(conn: Connection, identity: bytes) -> float:
    """Return the seconds for which logins under this identity are refused; 0 when they are not."""
    return float(await conn.fetchval(_LOCKED_S, identity) or 0)


_FAILED = """
    INSERT INTO login_failures AS f (identity, person, num_failures, failed_at, locked_until)
    VALUES ($1, $2, 1, now(), now())
    ON CONFLICT (identity) DO UPDATE SET num_failures = f.num_failures + 1, failed_at = now()
    WHERE f.locked_until <= clock_timestamp()
    RETURNING num_failures
"""
_LOCK = "UPDATE login_failures SET locked_until = clock_timestamp() + make_interval(secs => $2) WHERE identity = $1"
_FORGET_OLD = "DELETE FROM login_failures WHERE failed_at < now() - interval '1 day'"


async def count_failure(conn: Connection, identity: bytes, person: bytes) -> int | None:
    """Count one more failure; return how many there were in a row, or None while logins are refused.

    Failures are forgotten a day later. person: the digest of the e-mail address, by which `forget_failures` finds the
    counter.
    """
    await conn.execute(_FORGET_OLD)
    num_failures: int | None = await conn.fetchval(_FAILED, identity, person)
    return num_failures


async def lock_identity(conn: Connection, identity: bytes, delay_s: float) -> None:
    """Refuse attempts to log in under an identity for a time."""
    await conn.execute(_LOCK, identity, delay_s)


_FORGET = "DELETE FROM login_failures WHERE person = $1"


async def forget_failures(conn: Connection, person: bytes) -> None:
    """Delete all counters of failures of an e-mail address. person: the digest of the address."""
    await conn.execute(_FORGET, person)


class KnownClient(msgspec.Struct, frozen=True):
    """The facts about a client that tries to log in with an e-mail address."""

    device: bool
    """True if somebody has logged in with the address from the client's device."""
    addresses: list[str]
    """Addresses from which the user has logged in."""


_KNOWN = """
    SELECT coalesce(bool_or(l.device_sha256 = $2), false) AS device,
           coalesce(array_agg(DISTINCT l.address), '{}') AS addresses
    FROM users u JOIN logins l ON l.user_id = u.id
    WHERE u.email = $1 AND u.removed_at IS NULL AND l.expires_at > now() - interval '30 days'
        AND (l.device_sha256 IS NOT NULL OR l.revoked_at IS NULL)
"""


async def find_known_client(conn: Connection, email: str, device_sha256: bytes | None) -> KnownClient:
    """Return whether the user of an e-mail address has logged in with a device, and from where, in the last 30 days.

    A login that was ended because it was a stranger's does not count; a login from which its user logged out does.
    """
    row = await conn.fetchrow(_KNOWN, email, device_sha256)
    assert row is not None
    return KnownClient(**row)


_INSERT = """
    INSERT INTO logins (id, user_id, token_sha256, expires_at, address, user_agent, device_sha256, by_passkey)
    VALUES ($1, $2, $3, now() + $4::interval, $5, $6, $7, $8)
    RETURNING id, user_id, created_at, last_used_at, expires_at, address, user_agent
"""
_DELETE_OLD = "DELETE FROM logins WHERE user_id = $1 AND expires_at < now() - interval '30 days'"


async def create_login(
    conn: Connection,
    user_id: str,
    *,
    token_sha256: bytes,
    lifetime: datetime.timedelta,
    address: str,
    user_agent: str,
    device_sha256: bytes,
    by_passkey: bool = False,
) -> LoginRow:
    """Store a new login of a person, which expires after `lifetime`; delete old expired logins of the same person.

    by_passkey: True: the person has signed in with a passkey.
    """
    await conn.execute(_DELETE_OLD, user_id)
    row = await conn.fetchrow(
        _INSERT, new_id("login"), user_id, token_sha256, lifetime, address, user_agent, device_sha256, by_passkey
    )
    assert row is not None
    return LoginRow(**row)


_BY_PASSKEY = "UPDATE logins SET by_passkey = true WHERE id = $1"


async def count_as_by_passkey(conn: Connection, login_id: str) -> None:
    """Treat a login that has added a passkey as one that was made by a passkey."""
    await conn.execute(_BY_PASSKEY, login_id)


_NOT_BY_PASSKEY = "UPDATE logins SET by_passkey = false WHERE id = $1"


async def count_as_by_password(conn: Connection, login_id: str) -> None:
    """Treat a login whose passkeys were removed as one that was made by a password."""
    await conn.execute(_NOT_BY_PASSKEY, login_id)


_LOGGED_IN = """
    SELECT l.id AS login_id, u.id AS user_id, u.organization_id, u.email, u.role, l.expires_at,
           u.totp_confirmed_at IS NOT NULL AS has_totp, l.by_passkey,
           EXISTS (SELECT FROM passkeys p WHERE p.user_id = u.id) AS has_passkey,
           EXISTS (SELECT FROM passkeys p WHERE p.user_id = u.id AND $3 <> '' AND coalesce(p.rp_id, $3) = $3)
               AS has_passkey_here,
           l.last_used_at < now() - interval '1 minute' AS stale,
           (SELECT coalesce(array_agg(m.project_id), '{}') FROM project_members m WHERE m.user_id = u.id) AS projects,
           (SELECT coalesce(array_agg(m.role), '{}') FROM project_members m WHERE m.user_id = u.id) AS roles
    FROM logins l JOIN users u ON u.id = l.user_id
    WHERE l.token_sha256 = $1 AND l.revoked_at IS NULL AND l.expires_at > now() AND u.removed_at IS NULL
      AND ($2::interval IS NULL OR l.last_used_at > now() - $2)
"""
_TOUCH = "UPDATE logins SET last_used_at = now() WHERE id = $1"


async def find_login(
    conn: Connection, token_sha256: bytes, idle: datetime.timedelta | None, rp_id: str
) -> LoggedInUser | None:
    """Return the login that has the token with this digest. The digest is the credential: no tenant is known yet.

    idle: a login that was unused for so long has ended; None: none has. rp_id: the host name that passkeys of this
    server belong to; "" where browsers have none.
    """
    row = await conn.fetchrow(_LOGGED_IN, token_sha256, idle, rp_id)
    if row is None:
        return None
    fields = dict(row)
    if fields.pop("stale"):
        await conn.execute(_TOUCH, row["login_id"])
    memberships = dict(zip(fields.pop("projects"), fields.pop("roles"), strict=True))
    return LoggedInUser(**fields, memberships=memberships)


_LIST = """
    SELECT id, user_id, created_at, last_used_at, expires_at, address, user_agent FROM logins
    WHERE user_id = $1 AND revoked_at IS NULL AND expires_at > now()
      AND ($2::interval IS NULL OR last_used_at > now() - $2)
    ORDER BY created_at, id
"""


async def list_logins(conn: Connection, user_id: str, idle: datetime.timedelta | None) -> list[LoginRow]:
    """Return the user's valid logins, oldest first. idle: as for `find_login`."""
    return [LoginRow(**row) for row in await conn.fetch(_LIST, user_id, idle)]


_REVOKE = """
    UPDATE logins SET revoked_at = now(), device_sha256 = CASE WHEN $4 THEN device_sha256 END
    WHERE user_id = $1 AND ($2::text IS NULL OR id = $2) AND id IS DISTINCT FROM $3 AND revoked_at IS NULL
      AND expires_at > now()
    RETURNING id
"""


async def revoke_logins(
    conn: Connection,
    user_id: str,
    *,
    login_id: str | None = None,
    except_id: str | None = None,
    keeps_device: bool = False,
) -> list[str]:
    """End one login of the user, or all but one; return the ids of those that ended now.

    keeps_device: the device stays known, as after a log-out of its user.
    """
    return [row["id"] for row in await conn.fetch(_REVOKE, user_id, login_id, except_id, keeps_device)]


_REPLACE = """
    UPDATE logins SET revoked_at = now(), device_sha256 = NULL
    WHERE token_sha256 = $1 AND revoked_at IS NULL AND expires_at > now()
    RETURNING id
"""


async def end_replaced(conn: Connection, token_sha256: bytes) -> str | None:
    """End the login of a token that a new login in the same browser replaces. Return its id if it was valid."""
    ended: str | None = await conn.fetchval(_REPLACE, token_sha256)
    return ended
