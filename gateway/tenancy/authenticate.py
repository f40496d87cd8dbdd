"""Authentication: turns an Authorization header into a `Principal`, usually without I/O.

Looked-up keys are cached and dropped as soon as the change feed reports a change, so a revocation or a suspension holds
within a second in every gateway. While the database is away, keys that are cached stay good, others get `Overloaded`. A
client that presents too many bad keys has to wait; keys that are known here pass even then, since nobody guesses one.
"""

from __future__ import annotations

import asyncio
import datetime
import logging

from gateway.db.changes import Change, ChangeFeed
from gateway.db.organization.keys import FoundKey, find_usable_key, find_usable_key_by_id, touch_keys
from gateway.db.pool import FAILURES, LOOKUP_TIMEOUT_S, Database
from gateway.domain.errors import InvalidApiKey, Overloaded, PermissionDenied, Suspended, TooManyAttempts
from gateway.domain.tenancy.addresses import contains
from gateway.domain.tenancy.keys import ParsedKey, key_digest, parse_key
from gateway.domain.tenancy.permissions import has_scope, project_role_permissions, role_permissions, scope_permissions
from gateway.domain.tenancy.principal import Principal, Scope
from gateway.support.worker import Worker
from gateway.tenancy.failures import FailureCap
from gateway.tenancy.key_cache import CachedKey, KeyCache

NOTE_EVERY = datetime.timedelta(minutes=1)
WRITE_INTERVAL_S = 5.0
CHANGES_OF_OWNERS = frozenset({"organizations", "users"})
"""Tables whose changes affect many keys; only operators change them, and seldom."""

log = logging.getLogger(__name__)


class Authenticator:
    """Authenticates requests. A gateway process has one.

    Other caches of the process may subscribe to `changes`.
    failures: the cap on bad keys per address; None: there is none.
    """

    def __init__(self, database: Database, failures: FailureCap | None = None) -> None:
        self.changes = ChangeFeed(database)
        self._database = database
        self._failures = FailureCap(0) if failures is None else failures
        self._cache = KeyCache()
        self._used_at: dict[str, datetime.datetime] = {}
        self._writer = Worker(self._flush_uses, WRITE_INTERVAL_S, name="uses of keys", rests_first=True)

    async def start(self) -> None:
        """Begin to follow changes, and to write when keys were used."""
        self.changes.subscribe(self._forget_changed)
        await self.changes.start()
        self._writer.start()

    async def stop(self) -> None:
        """Stop listening, and write the uses of keys that were noted so far."""
        await self._writer.stop()
        await self.changes.stop()
        await self._flush_uses()

    async def authenticate(self, authorization_header: str | None, address: str = "") -> Principal:
        """Return the principal of an Authorization header.

        Raises InvalidApiKey: when the key is not good; the message has OpenAI's words.
        Raises Suspended: when the project or organization is suspended.
        Raises PermissionDenied: when the key may not be used from this address.
        Raises TooManyAttempts: when the address has sent too many wrong keys.
        Raises Overloaded: when the database does not answer.
        """
        token = bearer_token(authorization_header)
        entry = self._cache.get(key_digest(token))  # a key that is known has the shape and the checksum of one
        if entry is None:
            entry = await self._first_seen(parse_key(token), address)
        principal = entry.principal
        now = datetime.datetime.now(datetime.UTC)
        if not entry.usable(now):
            raise self._count_refusal(parse_key(token), address)
        if entry.suspended is not None:
            raise Suspended(f"This {entry.suspended} is suspended. An administrator can resume it.")
        if entry.ip_allow is not None and not contains(entry.ip_allow, address):
            raise PermissionDenied("This API key may not be used from your network address.", code="ip_not_allowed")
        if entry.last_noted is None or now - entry.last_noted >= NOTE_EVERY:
            entry.last_noted = now
            self._used_at[principal.api_key_id] = now
        return principal

    async def principal(self, project_id: str, key_id: str) -> Principal:
        """Return the principal of a key of a project with which a request was accepted before.

        Raises InvalidApiKey: when the key is not good any more.
        Raises Suspended: when the project or organization is suspended.
        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """
        async with self._database.acquire() as conn:
            row = await find_usable_key_by_id(conn, project_id, key_id)
        if row is None:
            raise InvalidApiKey("The API key of this request is not valid any more.")
        if row.suspended is not None:
            raise Suspended(f"This {row.suspended} is suspended. An administrator can resume it.")
        return principal_of(row)

    async def _first_seen(self, parsed: ParsedKey | None, address: str) -> CachedKey:
        """Return a key from the database that is not in the cache, and cache it.

        parsed: the presented key; None: it has not the form of a key.

        Raises InvalidApiKey: when the key is not good; the failure is counted.
        Raises TooManyAttempts: when the address has had too many failures, and the key was not good when last seen.
        """
        is_guess = parsed is None or not self._cache.was_good(parsed.sha256)
        if is_guess and (blocked_s := self._failures.blocked_for_s(address, asyncio.get_running_loop().time())):
            raise TooManyAttempts(
                "Too many incorrect API keys came from your network address. Try again later.", retry_after_s=blocked_s
            )
        entry = await self._look_up(parsed) if parsed is not None else None
        if entry is None:
            raise self._count_refusal(parsed, address)
        return entry

    def _count_refusal(self, parsed: ParsedKey | None, address: str) -> InvalidApiKey:
        self._failures.count(address, asyncio.get_running_loop().time())
        return InvalidApiKey(f"Incorrect API key provided{f': {parsed.public}***' if parsed else ''}.")

    async def _look_up(self, parsed: ParsedKey) -> CachedKey | None:
        clock = asyncio.get_running_loop().time
        if self._cache.is_unknown(parsed.sha256, clock()):
            return None
        generation = self._cache.generation
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S), self._database.acquire() as conn:
                row = await find_usable_key(conn, parsed.sha256)
        except FAILURES:
            raise Overloaded(
                "The API key cannot be checked at the moment. Try again in a moment.", retry_after_s=1.0
            ) from None
        if row is None or row.kind != parsed.kind:
            self._cache.put_unknown(parsed.sha256, clock(), generation)
            return None
        entry = CachedKey(principal_of(row), row.expires_at, suspended=row.suspended, ip_allow=row.ip_allow)
        self._cache.put(parsed.sha256, entry, generation)
        return entry

    def _forget_changed(self, change: Change | None) -> None:
        if change is None:
            self._cache.forget_all()
        elif change.table == "api_keys":
            self._cache.forget(change.id)
        elif change.table == "projects":
            self._cache.forget_of_project(change.id)
        elif change.table in CHANGES_OF_OWNERS:
            self._cache.forget_all()

    async def _flush_uses(self) -> None:
        """Write the noted uses of keys to the database. They are kept for the next time while the database is away."""
        if not self._used_at:
            return
        used_at, self._used_at = self._used_at, {}
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S), self._database.acquire() as conn:
                await touch_keys(conn, used_at)
        except FAILURES as error:
            log.warning("last_used_at is written later: %s", error)
            self._used_at = used_at | self._used_at


def principal_of(key: FoundKey) -> Principal:
    """Return the principal of a key: all facts about the key that a request needs.

    A user's key never does more than the user may: if the user has a role neither in the organization nor in the key's
    project, the key may do nothing.
    """
    scopes, permissions = frozenset(key.scopes), scope_permissions(key.scopes)
    if key.owned_by_user:
        permissions &= role_permissions(key.owner_role) | project_role_permissions(key.owner_project_role)
        if key.owner_role is None and key.owner_project_role is None:
            scopes = frozenset()
    return Principal(
        organization_id=key.organization_id,
        project_id=key.project_id or "",
        api_key_id=key.id,
        scopes=scopes,
        models=None if key.models is None else frozenset(key.models),
        permissions=permissions,
        store_days=key.store_days,
        log_content_days=key.log_content_days,
        service_tiers=frozenset(key.service_tiers),
    )


def bearer_token(authorization_header: str | None) -> str:
    """Return the token of `Bearer <token>`.

    authorization_header: None where the request has none.

    Raises InvalidApiKey: when the header is missing or holds no such token.
    """
    scheme, _, token = (authorization_header or "").strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise InvalidApiKey(
            "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer "
            "auth (i.e. Authorization: Bearer YOUR_KEY)."
        )
    return token.strip()


def require_scope(principal: Principal, scope: Scope) -> None:
    """Check that the key has this scope.

    Raises PermissionDenied: when the key does not have the scope.
    """
    if not has_scope(principal.scopes, scope):
        raise PermissionDenied(f"You have insufficient permissions for this operation. Missing scopes: {scope}.")
