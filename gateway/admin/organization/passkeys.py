"""Passkeys over HTTP: people log in by them, and add, name and remove their own; managers of users remove any.

Bytes travel in base64. Adding and removing a passkey takes the password, and the code of an authenticator where there
is one: a login that somebody left open is not enough.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, Response, delete, get, post
from litestar.params import FromPath

from gateway.admin.access import Nothing, challenge_cookie_name, needs, read_body
from gateway.admin.common import audit_author, check_name, unix_seconds
from gateway.admin.organization.logins import (
    MAX_LOGIN_BYTES,
    CurrentLogin,
    Proof,
    check_same_site,
    client_of,
    find_login,
    login_reply,
    protected_cookie,
)
from gateway.admin.organization.users import existing_user
from gateway.admin.paging import Page
from gateway.admin.services import AdminServices, Caller, Services
from gateway.db.organization import audit, logins, users
from gateway.db.organization import passkeys as rows
from gateway.domain.errors import Conflict, NotFound
from gateway.domain.tenancy.permissions import check_grant, role_permissions
from gateway.http.fields import decode
from gateway.http.request.call import call_of
from gateway.http.shape import shape
from gateway.tenancy.passkeys import ALGORITHMS, LIFETIME, Assertion, NewCredential
from gateway.tenancy.throttle import unlock

MAX_PASSKEYS = 20
"""The most passkeys of one user."""

CredentialId = Annotated[bytes, msgspec.Meta(min_length=1, max_length=1023)]
Part = Annotated[bytes, msgspec.Meta(max_length=8192)]
PasskeyName = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class LogInWithPasskey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer of a device to a challenge: WebAuthn's AuthenticatorAssertionResponse."""

    credential_id: CredentialId
    client_data: Part
    authenticator_data: Part
    signature: Part
    user_handle: CredentialId | None = None


class AddPasskey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new passkey: WebAuthn's AuthenticatorAttestationResponse, and a name for it."""

    name: PasskeyName
    credential_id: CredentialId
    client_data: Part
    attestation: Part


class RenamePasskey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new name of a passkey."""

    name: PasskeyName


class PasskeyChallenge(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that a browser needs to ask a device for a passkey. The challenge is good once, for five minutes."""

    challenge: bytes
    rp_id: str
    """The host name that passkeys belong to."""
    timeout_ms: int
    object: Literal["admin.passkey.challenge"] = "admin.passkey.challenge"


class NewPasskeyChallenge(PasskeyChallenge, frozen=True, kw_only=True):
    """The facts that a browser needs to have a device make a passkey."""

    user_handle: bytes
    email: str
    algorithms: list[int]
    """COSE's numbers of the accepted signature algorithms."""
    existing: list[bytes]
    """The credential ids of the caller's passkeys: a device that holds one of them makes no other."""


class Passkey(msgspec.Struct, frozen=True):
    """A passkey of a user."""

    id: str
    name: str
    created_at: int
    """Unix seconds."""
    last_used_at: int | None
    """Unix seconds; null for a passkey that was not used yet."""
    host: str | None
    """The host name that the passkey belongs to; null where it is not known before the next use."""
    is_usable: bool
    """False for a passkey of another host name than this server's, which browsers do not offer here."""
    object: Literal["admin.passkey"] = "admin.passkey"


class DeletedPasskey(msgspec.Struct, frozen=True):
    """A passkey that was removed."""

    id: str
    deleted: Literal[True] = True
    object: Literal["admin.passkey.deleted"] = "admin.passkey.deleted"


_assertion_decoder = msgspec.json.Decoder(LogInWithPasskey)
_nothing_decoder = msgspec.json.Decoder(Nothing)


@post("/login/passkey", status_code=200, opt=shape(body=Nothing), request_max_body_size=MAX_LOGIN_BYTES)
async def begin_passkey_login(request: Request[Any, Any, Any], services: Services) -> Response[PasskeyChallenge]:
    """Return a challenge to log in by a passkey. It is bound to the browser by a cookie."""
    check_same_site(request)
    decode(_nothing_decoder, await request.body() or b"{}")
    token, call = secrets.token_urlsafe(32), call_of(request.scope)
    body = PasskeyChallenge(
        challenge=services.passkeys.challenge("log in", token), rp_id=services.passkeys.party.id, timeout_ms=_TIMEOUT_MS
    )
    cookie = protected_cookie(call, challenge_cookie_name(call), token, int(LIFETIME.total_seconds()))
    return Response(body, cookies=[cookie])


@post(
    "/login/passkey/confirm", status_code=200, opt=shape(body=LogInWithPasskey), request_max_body_size=MAX_LOGIN_BYTES
)
async def log_in_by_passkey(request: Request[Any, Any, Any], services: Services) -> Response[CurrentLogin]:
    """Log in by a passkey, without a password or a code. A login that the same browser had ends."""
    check_same_site(request)
    wanted = decode(_assertion_decoder, await request.body() or b"{}")
    call = call_of(request.scope)
    assertion = Assertion(
        wanted.credential_id, wanted.client_data, wanted.authenticator_data, wanted.signature, wanted.user_handle
    )
    token = request.cookies.get(challenge_cookie_name(call), "")
    reply = login_reply(request, await services.passkeys.log_in(assertion, token, client_of(request)))
    reply.cookies.append(protected_cookie(call, challenge_cookie_name(call), "", 0))
    return reply


class PasskeyController(Controller):
    """Endpoints for the caller's own passkeys."""

    path = "/passkeys"

    @get(opt=needs(None))
    async def list_passkeys(self, services: Services, caller: Caller) -> Page[Passkey]:
        """List the caller's own passkeys."""
        async with services.database.acquire() as conn:
            return _page(services, await rows.list_passkeys(conn, caller.id))

    @post(status_code=200, opt=needs(None, body=Proof))
    async def begin_passkey(
        self, request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> NewPasskeyChallenge:
        """Return a challenge to make a passkey with. The passkey counts once it is confirmed."""
        wanted = await read_body(request, Proof)
        party = services.passkeys.party
        services.logins.check_may_change_factors(await find_login(request, services, caller))
        user = await services.logins.prove(caller.email or "", wanted.password, wanted.code, client_of(request))
        async with services.database.acquire() as conn:
            await unlock(conn, user.email)
            existing = await rows.credential_ids(conn, caller.id)
        _check_room(len(existing))
        return NewPasskeyChallenge(
            challenge=services.passkeys.challenge("add", caller.login_id or ""),
            rp_id=party.id,
            timeout_ms=_TIMEOUT_MS,
            user_handle=caller.id.encode(),
            email=user.email,
            algorithms=list(ALGORITHMS),
            existing=existing,
        )

    @post("/confirm", status_code=200, opt=needs(None, body=AddPasskey))
    async def add_passkey(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> Passkey:
        """Add a passkey that the caller's device has made. The present login counts as one by a passkey."""
        wanted = await read_body(request, AddPasskey)
        check_name(wanted.name)
        services.logins.check_may_change_factors(await find_login(request, services, caller))
        credential = NewCredential(wanted.credential_id, wanted.client_data, wanted.attestation)
        checked = await services.passkeys.check_new(credential, caller.login_id or "")
        async with services.database.transaction() as conn:
            await users.lock_user(conn, caller.organization_id, caller.id)
            _check_room(len(await rows.list_passkeys(conn, caller.id)))
            if not await services.passkeys.use(conn, wanted.client_data):
                raise Conflict("This challenge was answered already. Begin again.", code="challenge_used")
            row = await rows.add_passkey(
                conn,
                caller.id,
                credential_id=checked.credential_id,
                public_key=checked.public_key,
                sign_count=checked.sign_count,
                name=wanted.name,
                rp_id=services.passkeys.party.id,
            )
            if row is None:
                raise Conflict("This passkey was added already.", param="credential_id", code="passkey_exists")
            await logins.count_as_by_passkey(conn, caller.login_id or "")
            await audit.record(conn, audit_author(caller), "user.passkey_added", caller.id, after=_wire(services, row))
        return _wire(services, row)

    @post("/{passkey_id:str}", status_code=200, opt=needs(None, body=RenamePasskey))
    async def rename_passkey(
        self, passkey_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Passkey:
        """Give one of the caller's passkeys another name."""
        wanted = await read_body(request, RenamePasskey)
        check_name(wanted.name)
        services.logins.check_may_change_factors(await find_login(request, services, caller))
        async with services.database.transaction() as conn:
            before = _checked_passkey(await rows.lock_passkey(conn, caller.id, passkey_id), passkey_id)
            after = msgspec.structs.replace(before, name=wanted.name)
            if after != before:
                await rows.rename_passkey(conn, caller.id, passkey_id, wanted.name)
                shown = _wire(services, before), _wire(services, after)
                await audit.record(
                    conn, audit_author(caller), "user.passkey_renamed", caller.id, before=shown[0], after=shown[1]
                )
        return _wire(services, after)

    @post("/{passkey_id:str}/remove", status_code=200, opt=needs(None, body=Proof))
    async def remove_passkey(
        self, passkey_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> DeletedPasskey:
        """Remove one of the caller's passkeys. All other logins of the caller end.

        Without a passkey left the present login is one by a password again.
        """
        wanted = await read_body(request, Proof)
        services.logins.check_may_change_factors(await find_login(request, services, caller))
        async with services.database.acquire() as conn:
            _checked_passkey(await rows.lock_passkey(conn, caller.id, passkey_id), passkey_id)
        await services.logins.prove(caller.email or "", wanted.password, wanted.code, client_of(request))
        async with services.database.transaction() as conn:
            before = _checked_passkey(await rows.lock_passkey(conn, caller.id, passkey_id), passkey_id)
            await unlock(conn, caller.email or "")
            await rows.remove_passkeys(conn, caller.id, passkey_id)
            await logins.revoke_logins(conn, caller.id, except_id=caller.login_id)
            if not await rows.credential_ids(conn, caller.id):
                await logins.count_as_by_password(conn, caller.login_id or "")
            await audit.record(
                conn, audit_author(caller), "user.passkey_removed", caller.id, before=_wire(services, before)
            )
        return DeletedPasskey(passkey_id)


class UserPasskeyController(Controller):
    """Endpoints for the passkeys of other people, for people who manage users."""

    path = "/users/{user_id:str}/passkeys"

    @get(opt=needs("users.read"))
    async def list_user_passkeys(self, user_id: FromPath[str], services: Services, caller: Caller) -> Page[Passkey]:
        """List the passkeys of a user."""
        async with services.database.acquire() as conn:
            await existing_user(conn, caller.organization_id, user_id)
            return _page(services, await rows.list_passkeys(conn, user_id))

    @delete("/{passkey_id:str}", status_code=200, opt=needs("users.write"))
    async def remove_user_passkey(
        self, user_id: FromPath[str], passkey_id: FromPath[str], services: Services, caller: Caller
    ) -> DeletedPasskey:
        """Remove a passkey of a user, whose device was lost for example. All logins of the user end."""
        async with services.database.transaction() as conn:
            user = await existing_user(conn, caller.organization_id, user_id, lock=True)
            check_grant(caller, role_permissions(user.role))
            before = _checked_passkey(await rows.lock_passkey(conn, user_id, passkey_id), passkey_id)
            await rows.remove_passkeys(conn, user_id, passkey_id)
            await logins.revoke_logins(conn, user_id)
            await audit.record(
                conn, audit_author(caller), "user.passkey_removed", user_id, before=_wire(services, before)
            )
        return DeletedPasskey(passkey_id)


_TIMEOUT_MS = int(LIFETIME.total_seconds() * 1000)


def _checked_passkey(row: rows.PasskeyRow | None, passkey_id: str) -> rows.PasskeyRow:
    if row is None:
        raise NotFound(f"No passkey has the id '{passkey_id}'.", param="passkey_id")
    return row


def _check_room(num_passkeys: int) -> None:
    if num_passkeys >= MAX_PASSKEYS:
        raise Conflict(
            f"A user has at most {MAX_PASSKEYS} passkeys. Remove one that you no longer use.", code="too_many_passkeys"
        )


def _wire(services: AdminServices, row: rows.PasskeyRow) -> Passkey:
    used = None if row.last_used_at is None else unix_seconds(row.last_used_at)
    is_usable = services.passkeys.is_usable(row.rp_id)
    return Passkey(row.id, row.name, unix_seconds(row.created_at), used, row.rp_id, is_usable)


def _page(services: AdminServices, found: list[rows.PasskeyRow]) -> Page[Passkey]:
    ids = [row.id for row in found]
    return Page(
        [_wire(services, row) for row in found],
        first_id=ids[0] if ids else None,
        last_id=ids[-1] if ids else None,
        has_more=False,
    )
