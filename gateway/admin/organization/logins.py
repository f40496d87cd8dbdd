"""Logging in and out over HTTP, and what people change about their own login. The token is in a cookie only.

The cookie is out of reach of scripts (HttpOnly), stays away from requests that other sites cause (SameSite=Strict), and
from plain HTTP wherever the login itself came over HTTPS (Secure).
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, Response, delete, get, post
from litestar.datastructures import Cookie
from litestar.params import FromPath

from gateway.admin.access import Nothing, cookie_name, device_cookie_name, login_token, needs, read_body
from gateway.admin.common import audit_author, unix_seconds
from gateway.admin.organization.users import NewPassword, check_email, check_new_password, existing_user
from gateway.admin.paging import Page
from gateway.admin.services import AdminServices, Caller, Services
from gateway.db.organization import audit
from gateway.db.organization import logins as rows
from gateway.db.organization.organizations import get_organization
from gateway.db.organization.projects import ProjectRow, list_projects
from gateway.domain.errors import Conflict, InvalidCredentials, NotFound, PermissionDenied
from gateway.domain.tenancy import recovery, totp
from gateway.domain.tenancy.actor import Actor
from gateway.domain.tenancy.permissions import check_grant, project_role_permissions, role_permissions
from gateway.domain.tenancy.principal import Permission, Role
from gateway.http.fields import decode
from gateway.http.request.call import Call, call_of
from gateway.http.shape import shape
from gateway.tenancy.logins import DEVICE_LIFETIME, LIFETIME, Client, NewLogin, csrf_token
from gateway.tenancy.passwords import MAX_CHARS
from gateway.tenancy.throttle import unlock

Password = Annotated[str, msgspec.Meta(max_length=MAX_CHARS)]
Code = Annotated[str, msgspec.Meta(min_length=totp.DIGITS, max_length=totp.DIGITS)]
AnyCode = Annotated[str, msgspec.Meta(min_length=totp.DIGITS, max_length=recovery.MAX_CHARS)]


MAX_LOGIN_BYTES = 16 << 10
"""The most bytes of a login's body, which anybody may send."""


class LogIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """E-mail address and password of a user."""

    email: Annotated[str, msgspec.Meta(max_length=254)]
    password: Password
    code: AnyCode | None = None
    """The code that the user's authenticator shows, or a recovery code, for users who have an authenticator."""


class ChangePassword(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The present password of the caller, and the password that replaces it."""

    password: Password
    new_password: NewPassword


class Confirm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The code that confirms a new authenticator."""

    code: Code


class Proof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The caller's password, and the code of the caller's authenticator."""

    password: Password
    code: AnyCode | None = None
    """The code that the authenticator shows, or a recovery code; needed where the authenticator was confirmed."""


class WithPassword(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The caller's password, which the server asks for before an authenticator is set up."""

    password: Password


class CurrentLogin(msgspec.Struct, frozen=True):
    """The login with which a request is made."""

    id: str
    user_id: str
    email: str
    role: Role | None
    csrf_token: str
    """The value of the header X-CSRF-Token for every request that changes something."""
    expires_at: int
    """Unix seconds."""
    object: Literal["admin.login"] = "admin.login"


class KnownLogin(msgspec.Struct, frozen=True):
    """The answer whether a request brings the cookie of a login."""

    has_cookie: bool
    """True if the request has the cookie. The login may have ended: `session` tells that."""
    passkey_origin: str | None
    """The origin of the pages at which passkeys work, such as `https://llm.example.com`; null: there is none."""
    object: Literal["admin.login.known"] = "admin.login.known"


class MemberProject(msgspec.Struct, frozen=True):
    """A project in which the user has a role, and what the role allows."""

    id: str
    name: str
    role: Role
    permissions: list[Permission]


class LoginOrganization(msgspec.Struct, frozen=True):
    """The organization of the user who is logged in."""

    id: str
    name: str


class Session(CurrentLogin, frozen=True, kw_only=True):
    """The login with which a request is made, and what its user may do."""

    organization: LoginOrganization
    permissions: list[Permission]
    """Permissions in the whole organization."""
    projects: list[MemberProject]
    """The projects of which the user is a member, by name."""
    has_totp: bool
    has_passkey: bool
    must_set_up_totp: bool
    """True if the user has to set up an authenticator, or to log in with a passkey, before doing anything else."""
    needs_second_factor: bool
    """True if a password alone is not enough for the user's role."""
    has_passkey_here: bool
    """False where the user has no passkey, or all of them belong to other host names than this server's."""
    model: str
    """The id of the base model."""
    imports_from_sources: bool
    """True if the operator allows adapters to be downloaded from any source."""


class Login(msgspec.Struct, frozen=True):
    """A login of a user."""

    id: str
    address: str
    user_agent: str
    created_at: int
    """Unix seconds."""
    last_used_at: int
    """Unix seconds."""
    expires_at: int
    """Unix seconds."""
    current: bool
    """True if this is the login with which the request is made."""
    object: Literal["admin.login"] = "admin.login"


class EndedLogins(msgspec.Struct, frozen=True):
    """Logins that have ended, by id."""

    ids: list[str]
    deleted: Literal[True] = True
    object: Literal["admin.login.deleted"] = "admin.login.deleted"


class ConfirmedTotp(EndedLogins, frozen=True, kw_only=True):
    """Logins that ended, and the recovery codes of a new authenticator."""

    recovery_codes: list[str]
    """Codes that take the place of the authenticator's, each once. They are shown this once."""


class TotpSecret(msgspec.Struct, frozen=True):
    """The secret of a new authenticator. The authenticator counts once a code of it is confirmed."""

    secret: str
    uri: str
    """The content of the QR code that an authenticator scans."""
    object: Literal["admin.totp"] = "admin.totp"


_log_in_decoder = msgspec.json.Decoder(LogIn)


@post("/login", status_code=200, opt=shape(body=LogIn), request_max_body_size=MAX_LOGIN_BYTES)
async def log_in(request: Request[Any, Any, Any], services: Services) -> Response[CurrentLogin]:
    """Log in with an e-mail address and a password. A login that the same browser had ends."""
    check_same_site(request)
    wanted = decode(_log_in_decoder, await request.body() or b"{}")
    check_email(wanted.email)
    new = await services.logins.log_in(wanted.email, wanted.password, wanted.code, client_of(request))
    return login_reply(request, new)


def login_reply(request: Request[Any, Any, Any], new: NewLogin) -> Response[CurrentLogin]:
    """Return the reply to a successful login, with its cookies."""
    body = CurrentLogin(
        id=new.login.id,
        user_id=new.user.id,
        email=new.user.email,
        role=new.user.role,
        csrf_token=csrf_token(new.token),
        expires_at=unix_seconds(new.login.expires_at),
    )
    call = call_of(request.scope)
    cookies = [
        protected_cookie(call, cookie_name(call), new.token, int(LIFETIME.total_seconds())),
        protected_cookie(call, device_cookie_name(call), new.device_token, int(DEVICE_LIFETIME.total_seconds())),
    ]
    return Response(body, cookies=cookies)


@get("/login", opt=shape())
async def has_login(request: Request[Any, Any, Any], services: Services) -> KnownLogin:
    """Tell whether the browser has a login's cookie, which scripts cannot read: without one nobody is logged in."""
    return KnownLogin(login_token(request) is not None, passkey_origin=services.passkeys.origin)


class LoginController(Controller):
    """Endpoints for the caller's own login, logins, password and authenticator."""

    @get("/session", opt=needs(None))
    async def get_login(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> Session:
        """Show the user of the login, what the user may do, and the CSRF token that other requests need."""
        token = login_token(request) or ""
        found = await find_login(request, services, caller)
        async with services.database.acquire() as conn:
            user = await rows.get_credentials(conn, caller.id)
            organization = await get_organization(conn, caller.organization_id)
            must_set_up_totp = services.logins.must_set_up_totp(found)
            member_of = [] if must_set_up_totp else list(found.memberships)
            projects = await list_projects(conn, caller.organization_id, limit=len(member_of), only=member_of)
        return Session(
            id=found.login_id,
            user_id=found.user_id,
            email=found.email,
            role=found.role,
            csrf_token=csrf_token(token),
            expires_at=unix_seconds(found.expires_at),
            organization=LoginOrganization(organization.id, organization.name),
            permissions=sorted(caller.permissions),
            projects=[_member_project(row, found.memberships[row.id]) for row in sorted(projects, key=_by_name)],
            has_totp=user is not None and user.totp_confirmed,
            has_passkey=found.has_passkey,
            must_set_up_totp=must_set_up_totp,
            needs_second_factor=services.logins.needs_second_factor(found),
            has_passkey_here=found.has_passkey_here,
            model=next(iter(services.bases.visible("", caller.organization_id)), ""),
            imports_from_sources=not services.sources.is_empty,
        )

    @post("/logout", status_code=200, opt=needs(None, body=Nothing))
    async def log_out(
        self, request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Response[EndedLogins]:
        """End the login with which the request is made."""
        await read_body(request, Nothing)
        ended = await _end_logins(services, caller, caller.id, login_id=caller.login_id, keeps_device=True)
        call = call_of(request.scope)
        return Response(ended, cookies=[protected_cookie(call, cookie_name(call), "", 0)])

    @get("/logins", opt=needs(None))
    async def list_logins(self, services: Services, caller: Caller) -> Page[Login]:
        """List the caller's own logins that have not ended."""
        return await _list(services, caller, caller.id)

    @delete("/logins/{login_id:str}", status_code=200, opt=needs(None))
    async def end_login(self, login_id: FromPath[str], services: Services, caller: Caller) -> EndedLogins:
        """End one of the caller's logins."""
        ended = await _end_logins(services, caller, caller.id, login_id=login_id)
        if not ended.ids:
            raise NotFound(f"You have no login with the id '{login_id}'.", param="login_id")
        return ended

    @post("/password", status_code=200, opt=needs(None, body=ChangePassword))
    async def change_password(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> EndedLogins:
        """Change the caller's password. All other logins of the caller end."""
        wanted = await read_body(request, ChangePassword)
        user = await _check_password(request, services, caller, wanted.password)
        check_new_password(wanted.new_password, "new_password", user.email, user.name)
        password_hash = await services.passwords.hash(wanted.new_password)
        async with services.database.transaction() as conn:
            await rows.set_password_hash(conn, caller.id, password_hash)
            await unlock(conn, caller.email or "")
            ended = await rows.revoke_logins(conn, caller.id, except_id=caller.login_id)
            await audit.record(conn, audit_author(caller), "user.password_changed", caller.id)
        return EndedLogins(ended)

    @post("/totp", status_code=200, opt=needs(None, body=WithPassword))
    async def begin_totp(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> TotpSecret:
        """Make the secret of a new authenticator, which counts once a code of it is confirmed."""
        wanted = await read_body(request, WithPassword)
        services.logins.check_may_change_factors(await find_login(request, services, caller))
        user = await _check_password(request, services, caller, wanted.password)
        if user.totp_confirmed:
            raise Conflict("You already have an authenticator. Remove the old authenticator first.", code="totp_exists")
        secret = totp.new_secret()
        sealed = services.secrets.seal(secret, "users.totp_secret", caller.organization_id, caller.id)
        async with services.database.transaction() as conn:
            await rows.set_totp_secret(conn, caller.id, sealed.data, content_key=sealed.key_id)
            await unlock(conn, user.email)
            await audit.record(conn, audit_author(caller), "user.totp_begun", caller.id)
        return TotpSecret(totp.base32(secret), totp.provisioning_uri(secret, user.email))

    @post("/totp/confirm", status_code=200, opt=needs(None, body=Confirm))
    async def confirm_totp(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> ConfirmedTotp:
        """Confirm a new authenticator with its code. From then on a login needs a code, and all other logins end.

        The reply has recovery codes, for when the authenticator is lost.
        """
        wanted = await read_body(request, Confirm)
        async with services.database.acquire() as conn:
            user = await rows.get_credentials(conn, caller.id)
        if user is None or user.totp_secret is None:
            raise Conflict("There is no new authenticator to confirm. Begin by adding one.", code="totp_missing")
        if not await services.logins.use_code(user, wanted.code):
            raise InvalidCredentials(
                "The code is wrong, or was used already. Enter the code that the authenticator shows now.", param="code"
            )
        codes = recovery.new_codes()
        async with services.database.transaction() as conn:
            await rows.confirm_totp(conn, caller.id, [recovery.digest(code) for code in codes])
            ended = await rows.revoke_logins(conn, caller.id, except_id=caller.login_id)
            await audit.record(conn, audit_author(caller), "user.totp_confirmed", caller.id)
        return ConfirmedTotp(ended, recovery_codes=codes)

    @post("/totp/remove", status_code=200, opt=needs(None, body=Proof))
    async def remove_totp(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> EndedLogins:
        """Remove the authenticator, so that a password is enough to log in. All other logins end."""
        wanted = await read_body(request, Proof)
        user = await services.logins.prove(caller.email or "", wanted.password, wanted.code, client_of(request))
        async with services.database.transaction() as conn:
            await rows.set_totp_secret(conn, caller.id, None)
            await unlock(conn, user.email)
            ended = await rows.revoke_logins(conn, caller.id, except_id=caller.login_id)
            await audit.record(conn, audit_author(caller), "user.totp_removed", caller.id)
        return EndedLogins(ended)


class UserLoginController(Controller):
    """Endpoints for the logins of other people, for people who manage users."""

    path = "/users/{user_id:str}/logins"

    @get(opt=needs("users.read"))
    async def list_user_logins(self, user_id: FromPath[str], services: Services, caller: Caller) -> Page[Login]:
        """List the logins of a user."""
        async with services.database.acquire() as conn:
            await existing_user(conn, caller.organization_id, user_id)
        return await _list(services, caller, user_id)

    @delete(status_code=200, opt=needs("users.write"))
    async def end_user_logins(self, user_id: FromPath[str], services: Services, caller: Caller) -> EndedLogins:
        """End all logins of a user."""
        async with services.database.acquire() as conn:
            user = await existing_user(conn, caller.organization_id, user_id)
        check_grant(caller, role_permissions(user.role))
        return await _end_logins(services, caller, user_id)


def _by_name(project: ProjectRow) -> str:
    return project.name


def _member_project(project: ProjectRow, role: Role) -> MemberProject:
    return MemberProject(project.id, project.name, role, sorted(project_role_permissions(role)))


async def _list(services: AdminServices, caller: Actor, user_id: str) -> Page[Login]:
    async with services.database.acquire() as conn:
        found = await rows.list_logins(conn, user_id, services.logins.idle)
    shown = [
        Login(
            id=row.id,
            address=row.address,
            user_agent=row.user_agent,
            created_at=unix_seconds(row.created_at),
            last_used_at=unix_seconds(row.last_used_at),
            expires_at=unix_seconds(row.expires_at),
            current=row.id == caller.login_id,
        )
        for row in found
    ]
    ids = [row.id for row in found]
    return Page(shown, first_id=ids[0] if ids else None, last_id=ids[-1] if ids else None, has_more=False)


async def _end_logins(
    services: AdminServices, caller: Actor, user_id: str, login_id: str | None = None, *, keeps_device: bool = False
) -> EndedLogins:
    async with services.database.transaction() as conn:
        ended = await rows.revoke_logins(conn, user_id, login_id=login_id, keeps_device=keeps_device)
        if ended:
            await audit.record(conn, audit_author(caller), "logout.succeeded", user_id, before={"login_ids": ended})
    return EndedLogins(ended)


async def _check_password(
    request: Request[Any, Any, Any], services: AdminServices, caller: Actor, password: str
) -> rows.Credentials:
    """Check the password of the holder of a login once more. Wrong passwords count as failed logins do."""
    return await services.logins.verify(caller.email or "", password, client_of(request))


async def find_login(request: Request[Any, Any, Any], services: AdminServices, caller: Actor) -> rows.LoggedInUser:
    """Return the login with which a request is made.

    Raises InvalidCredentials: when the login has ended, or was unused for too long.
    Raises TooManyAttempts: when the caller's address has sent too many wrong tokens or keys, unless this token was good
    when it was last seen.
    """
    return await services.logins.find(login_token(request) or "", caller.address, asyncio.get_running_loop().time())


def check_same_site(request: Request[Any, Any, Any]) -> None:
    """Check that a request to log in does not come from a page of another site.

    Raises PermissionDenied: when it does.
    """
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin") or _is_form(request):
        raise PermissionDenied("A page of another website cannot log people in here.", code="csrf")


def _is_form(request: Request[Any, Any, Any]) -> bool:
    """Tell whether a request's body has a type that a page can send to another site without a preflight request.

    See Fetch, "CORS-safelisted request-header".
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")


def client_of(request: Request[Any, Any, Any]) -> Client:
    """Return the facts about a client that tries to log in: its address and its device."""
    call = call_of(request.scope)
    agent = request.headers.get("user-agent", "")
    device = request.cookies.get(device_cookie_name(call))
    now_s = asyncio.get_running_loop().time()
    return Client(call.address, agent, call.request_id, now_s, device, login_token(request))


def protected_cookie(call: Call, name: str, token: str, max_age_s: int) -> Cookie:
    """Return a cookie that scripts cannot read and other sites cannot cause to be sent.

    max_age_s: the seconds after which the browser forgets the cookie.
    """
    return Cookie(
        key=name,
        value=token,
        max_age=max_age_s,
        path="/",
        secure=call.is_https,
        httponly=True,
        samesite="strict",
    )
