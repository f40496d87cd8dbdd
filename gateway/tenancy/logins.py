"""Logins of people: password and one-time code in, token out; and back from a token to its person.

A login is a token of 256 random bits, stored as its SHA-256. Its CSRF token is derived from it, so that only a client
that was answered by this server, and not a page that merely makes the browser send the cookie, can know both. Knows no
HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hashlib
import hmac
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

import msgspec

from gateway.db.organization import audit, logins
from gateway.db.organization.passkeys import LockedOutUser, list_locked_out
from gateway.db.pool import FAILURES, Database
from gateway.domain.content.keys import SecretColumn
from gateway.domain.errors import InvalidCredentials, PermissionDenied, TooManyAttempts
from gateway.domain.tenancy import recovery, totp
from gateway.tenancy.failures import FailureCap
from gateway.tenancy.login_queue import LoginQueue
from gateway.tenancy.passwords import MAX_AT_ONCE, Passwords
from gateway.tenancy.throttle import Paused, Throttle, unlock

if TYPE_CHECKING:
    from gateway.db.pool import Connection

LIFETIME = datetime.timedelta(hours=12)
DEVICE_LIFETIME = LIFETIME + datetime.timedelta(days=30)
"""The time after its last login for which a device is known."""

MAX_USER_AGENT_CHARS = 256
MAX_KNOWN_TOKENS = 10_000
"""The most login tokens that one gateway remembers as valid."""

OpenSecret = Callable[[str | None, bytes, SecretColumn, str, str], bytes]
"""A function that returns a secret in the clear, as `gateway.support.secrets.Secrets.open`."""

log = logging.getLogger(__name__)


class Client(msgspec.Struct, frozen=True):
    """The client of a login attempt."""

    address: str
    user_agent: str
    request_id: str
    now_s: float
    """The time on a monotonic clock, for limits per address."""
    device: str | None = None
    """The device token that an earlier login left in the same browser; None for none."""
    replaces: str | None = None
    """The token of the present login in the same browser, which the new one replaces; None for none."""

    def __repr__(self) -> str:
        return f"Client(address={self.address!r}, request_id={self.request_id!r})"


class NewLogin(msgspec.Struct, frozen=True):
    """A login that was just made."""

    token: str
    """The token for the cookie, shown once."""
    device_token: str
    """The token for the cookie that outlives the login."""
    login: logins.LoginRow
    user: logins.Credentials

    def __repr__(self) -> str:
        return f"NewLogin(login={self.login!r})"


def csrf_token(token: str) -> str:
    """Return the CSRF token that belongs to a login's token."""
    return hashlib.sha256(b"csrf:" + token.encode()).hexdigest()


def csrf_matches(token: str, presented: str) -> bool:
    """Tell whether a presented CSRF token belongs to a login's token."""
    return hmac.compare_digest(csrf_token(token).encode(), presented.encode())


class Logins:
    """The logins of people. A gateway process has one."""

    def __init__(
        self,
        database: Database,
        passwords: Passwords,
        failures: FailureCap,
        open_secret: OpenSecret,
        *,
        idle: datetime.timedelta | None = None,
        require_totp: Literal["nobody", "owners", "everybody"] = "nobody",
        rp_id: str = "",
    ) -> None:
        """Prepare to log people in. failures: the cap of failures per address, which bad keys share.

        open_secret: opens seeds of authenticators.
        idle: ends logins that are unused for so long; None: no login ends so.
        require_totp: the people that need an authenticator.
        rp_id: the host name that passkeys of this server belong to; "" where browsers have none.
        """
        self.idle = idle
        self._require_totp = require_totp
        self.rp_id = rp_id
        self._database = database
        self._passwords = passwords
        self._failures = failures
        self._open_secret = open_secret
        self._line = LoginQueue(MAX_AT_ONCE)
        self._throttle = Throttle()
        self._known_tokens: OrderedDict[bytes, None] = OrderedDict()
        self._recordings: set[asyncio.Task[None]] = set()
        self._recording = asyncio.Lock()

    async def stop(self) -> None:
        """Wait until all failed logins are in the audit log."""
        await asyncio.gather(*self._recordings)

    async def log_in(self, email: str, password: str, code: str | None, client: Client) -> NewLogin:
        """Log a user in.

        If the password is right and the user has a second factor, a missing code has the error code `totp_required`.

        Raises InvalidCredentials: when the password or the code is wrong; the same when nobody has the address.
        Raises TooManyAttempts: when too many attempts have failed.
        """
        return await self.admit(await self.prove(email, password, code, client), client)

    async def prove(self, email: str, password: str, code: str | None, client: Client) -> logins.Credentials:
        """Return the user with this e-mail address and password, and with the code of their authenticator, if any.

        Raises as `log_in`.
        """
        user = await self.verify(email, password, client)
        if user.totp_confirmed and code is None:
            raise InvalidCredentials(
                "This user has an authenticator. Send its code in the field 'code'.", param="code", code="totp_required"
            )
        if user.totp_confirmed and not await self._use_any_code(user, code or "", client):
            self._failures.count(client.address, client.now_s)
            raise self.refusal(user, client)
        return user

    async def _use_any_code(self, user: logins.Credentials, code: str, client: Client) -> bool:
        """Tell whether a code is the authenticator's, or one of the recovery codes, which is used up and recorded."""
        if len(code) == totp.DIGITS:
            return await self.use_code(user, code)
        async with self._database.acquire() as conn, conn.transaction():
            left = await logins.use_recovery_code(conn, user.id, recovery.digest(code))
            if left is not None:
                await audit.record(
                    conn, _author(user, client), "user.recovery_code_used", user.id, after={"codes_left": left}
                )
        return left is not None

    async def verify(self, email: str, password: str, client: Client) -> logins.Credentials:
        """Return the user with this e-mail address and password. The attempt counts as failed until a login succeeds.

        Raises as `log_in`.
        """
        try:
            return await self._verify(email.lower(), password, client)
        except Paused as paused:
            await self._throttle.wait_turn(client.address, paused)
            return await self._verify(email.lower(), password, client)

    async def _verify(self, email: str, password: str, client: Client) -> logins.Credentials:
        """Verify a password as `verify` does, without waiting for a turn."""
        self.check_blocked(client.address, client.now_s)
        device = None if client.device is None else _digest(client.device)
        with self.counted(client), self._line.place(client.address):
            async with self._database.acquire() as conn:
                await self._throttle.count_attempt(conn, email, client.address, device)
                user = await logins.find_credentials(conn, email)
            # No connection is held while the password is hashed.
            if not await self._passwords.matches(user.password_hash if user else None, password) or user is None:
                raise self.refusal(user, client)
        return user

    async def use_code(self, user: logins.Credentials, code: str) -> bool:
        """Tell whether the code of a user's authenticator is right and was never used before.

        Raises ContentUnreadable: when this gateway lacks the key that encrypted the authenticator's seed.
        """
        assert user.totp_secret is not None
        seed = self._open_secret(
            user.totp_content_key, user.totp_secret, "users.totp_secret", user.organization_id, user.id
        )
        async with self._database.acquire() as conn:
            step = totp.matching_step(seed, code, await logins.now_s(conn))
            return step is not None and await logins.use_totp_step(conn, user.id, step)

    async def find(self, token: str, address: str, now_s: float) -> logins.LoggedInUser:
        """Return the holder of a token.

        Raises InvalidCredentials: when nobody holds it any more, or its login was unused for too long.
        Raises TooManyAttempts: when the address has sent too many wrong tokens or keys. A token that was good when last
        seen is exempt, since its holder does not guess.
        """
        digest = _digest(token)
        if digest not in self._known_tokens:
            self.check_blocked(address, now_s)
        async with self._database.acquire() as conn:
            found = await logins.find_login(conn, digest, self.idle, self.rp_id)
        if found is None:
            self._known_tokens.pop(digest, None)
            self._failures.count(address, now_s)
            raise InvalidCredentials("Your login has ended. Log in again.", code="login_ended")
        self._known_tokens[digest] = None
        self._known_tokens.move_to_end(digest)
        if len(self._known_tokens) > MAX_KNOWN_TOKENS:
            self._known_tokens.popitem(last=False)
        return found

    def must_set_up_totp(self, found: logins.LoggedInUser) -> bool:
        """Tell whether the holder of a login may do nothing before they have a second factor.

        An authenticator is one, and so is the passkey by which the login was made.
        """
        return self.needs_second_factor(found) and not (found.has_totp or found.by_passkey)

    def needs_second_factor(self, found: logins.LoggedInUser) -> bool:
        """Tell whether a password alone is not enough for the holder of a login."""
        return self._require_totp == "everybody" or (self._require_totp == "owners" and found.role == "owner")

    async def locked_out(self, conn: Connection, organization_id: str | None = None) -> list[LockedOutUser]:
        """Return the people who need a second factor and can show none, since the server's host name has changed.

        organization_id: None for all organizations.
        """
        if self._require_totp == "nobody":
            return []
        owners_only = self._require_totp == "owners"
        return await list_locked_out(conn, organization_id, self.rp_id, owners_only=owners_only)

    def check_may_change_factors(self, found: logins.LoggedInUser) -> None:
        """Check that the holder of a login may add, rename or remove a second factor.

        Raises PermissionDenied: when a second factor is required and the user has a passkey, but has logged in with the
        password alone: the password alone would be enough if it could change the factors.
        """
        if not found.has_passkey or not self.must_set_up_totp(found):
            return
        if not found.has_passkey_here:
            raise PermissionDenied(
                "All your passkeys belong to another address that this server had before. Ask somebody who manages "
                "users to remove them (`lorikeet user passkeys`), and set up a new one then.",
                code="passkeys_elsewhere",
            )
        raise PermissionDenied(
            "You have a passkey. Log in with it before you change passkeys or authenticators.",
            code="passkey_required",
        )

    def check_blocked(self, address: str, now_s: float) -> None:
        """Check that an address has not had too many failures lately.

        Raises TooManyAttempts: when too many attempts from the address have failed.
        """
        if blocked_s := self._failures.blocked_for_s(address, now_s):
            raise TooManyAttempts(
                "Too many failed logins came from your network address. Try again later.", retry_after_s=blocked_s
            )

    @contextlib.contextmanager
    def counted(self, client: Client) -> Iterator[None]:
        """Count a failure of the client before its password is hashed, or its passkey's signature is checked.

        Parallel guesses cannot overtake the count. The failure is given back where the proof is right, or was not
        looked at; a client that leaves before its answer gets nothing back.
        """
        self._failures.count(client.address, client.now_s)
        try:
            yield
        except (InvalidCredentials, asyncio.CancelledError):
            raise
        except Exception:
            self._failures.give_back(client.address)
            raise
        else:
            self._failures.give_back(client.address)

    def refusal(
        self,
        user: logins.Credentials | None,
        client: Client,
        message: str = "Incorrect e-mail address, password or code.",
    ) -> InvalidCredentials:
        """Return the error for a refused login, and record it in the audit log if there is such a user.

        Recording goes on in the background: else the time of the reply would tell which addresses exist.
        """
        if user is not None:
            recording = asyncio.create_task(self._record_failure(user, client))
            self._recordings.add(recording)
            recording.add_done_callback(self._recordings.discard)
        return InvalidCredentials(message)

    async def _record_failure(self, user: logins.Credentials, client: Client) -> None:
        """Write a failed login to the audit log, after those that failed before: with one connection at a time."""
        try:
            async with self._recording, self._database.acquire() as conn, conn.transaction():
                await audit.record(conn, _author(user, client), "login.failed", user.id)
        except FAILURES as error:
            log.warning("a failed login of %s from %s is not in the audit log: %s", user.id, client.address, error)

    async def admit(self, user: logins.Credentials, client: Client, passkey_id: str | None = None) -> NewLogin:
        """Create a login for a user whose identity is proven.

        passkey_id: the passkey that proved it; None: the password proved it, with the code of an authenticator if the
        user has one.
        """
        token, device_token = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        async with self._database.acquire() as conn, conn.transaction():
            await unlock(conn, user.email)
            replaced = None if client.replaces is None else await logins.end_replaced(conn, _digest(client.replaces))
            login = await logins.create_login(
                conn,
                user.id,
                token_sha256=_digest(token),
                lifetime=LIFETIME,
                address=client.address,
                user_agent=client.user_agent[:MAX_USER_AGENT_CHARS],
                device_sha256=_digest(device_token),
                by_passkey=passkey_id is not None,
            )
            after = {"login_id": login.id} | ({"replaces": replaced} if replaced else {})
            after |= {"passkey_id": passkey_id} if passkey_id else {}
            await audit.record(conn, _author(user, client), "login.succeeded", user.id, after=after)
        return NewLogin(token, device_token, login, user)


def _author(user: logins.Credentials, client: Client) -> audit.Author:
    return audit.Author(
        organization_id=user.organization_id,
        kind="user",
        id=user.id,
        email=user.email,
        address=client.address,
        request_id=client.request_id,
    )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
