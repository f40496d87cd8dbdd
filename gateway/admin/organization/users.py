"""The people of an organization over HTTP, with their role in all of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath
from msgspec import UNSET, UnsetType

from gateway.admin.access import LIST_QUERY, needs, read_body
from gateway.admin.common import audit_author, check_address, check_name, unix_seconds, with_revoked_keys
from gateway.admin.organization.key_restrictions import check_may_admit
from gateway.admin.organization.key_wire import OwnedKey, owned_key
from gateway.admin.paging import Page, page, read_list_query, unknown_cursor, wrong_value
from gateway.admin.services import AdminServices, Caller, Services
from gateway.db.organization import audit, keys, logins, passkeys, users
from gateway.domain.errors import Conflict, InvalidRequest, NotFound
from gateway.domain.tenancy.actor import Actor
from gateway.domain.tenancy.common_passwords import is_common
from gateway.domain.tenancy.permissions import authorize, check_grant, role_permissions
from gateway.domain.tenancy.principal import Role
from gateway.tenancy.passwords import MAX_CHARS, MIN_CHARS
from gateway.tenancy.throttle import unlock

if TYPE_CHECKING:
    from gateway.db.pool import Connection

Email = Annotated[str, msgspec.Meta(min_length=3, max_length=254)]
"""An e-mail address. It is checked by `check_email` and `check_address` as well."""

NewPassword = Annotated[str, msgspec.Meta(min_length=MIN_CHARS, max_length=MAX_CHARS)]
PersonName = Annotated[str, msgspec.Meta(max_length=128)]

_EMAIL = re.compile(r"[!-?A-~]+@[!-?A-~]+")
"""The form of an address: one @ among printable ASCII characters without spaces.

Only a message could show whether the address exists.
"""


class CreateUser(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new user."""

    email: Email
    name: PersonName = ""
    role: Role | None = None
    """The role in the organization; null for a member of single projects."""
    password: NewPassword | None = None
    """The password. Without a password the user cannot log in yet."""


class ModifyUser(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """New settings of a user. A field that is left out stays as it is."""

    name: PersonName | UnsetType = UNSET
    role: Role | UnsetType | None = UNSET


class ResetUser(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new password for a user."""

    password: NewPassword


class User(msgspec.Struct, frozen=True):
    """A person who may log in."""

    id: str
    name: str
    email: str
    role: Role | None
    """The role in the organization; null for a member of single projects."""
    added_at: int
    """Unix seconds."""
    has_password: bool
    has_totp: bool
    num_passkeys: int
    is_locked_out: bool = False
    """True if the user's role requires a second factor, and the user's only second factors are passkeys of another host
    name than the server's. Once these passkeys are removed or reset, the user can set up a second factor anew."""
    object: Literal["organization.user"] = "organization.user"


class DeletedUser(msgspec.Struct, frozen=True):
    """A user who was deleted."""

    id: str
    deleted: Literal[True] = True
    object: Literal["organization.user.deleted"] = "organization.user.deleted"


class UserController(Controller):
    """Endpoints for the users of the organization."""

    path = "/users"

    @get(opt=needs("users.read", query=(*LIST_QUERY, "email")))
    async def list_users(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> Page[User]:
        """List the users of the organization."""
        query = read_list_query(request.query_params)
        email = request.query_params.get("email")
        if email is not None:
            check_email(email)
        async with services.database.acquire() as conn:
            if query.after and await users.get_user(conn, caller.organization_id, query.after) is None:
                raise unknown_cursor(query.after)
            rows = await users.list_users(
                conn,
                caller.organization_id,
                after=query.after,
                limit=query.limit + 1,
                email=None if email is None else email.lower(),
            )
            locked_out = await _locked_out(conn, services, caller)
        return page([user_wire(row, is_locked_out=row.id in locked_out) for row in rows], query.limit)

    @post(status_code=200, opt=needs("users.write", body=CreateUser))
    async def create_user(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> User:
        """Create a user.

        A key that is held to networks or to a date can give neither a password nor a role.
        """
        wanted = await read_body(request, CreateUser)
        check_email(wanted.email)
        check_address(wanted.email, "email")
        check_name(wanted.name)
        check_grant(caller, role_permissions(wanted.role))
        if wanted.password is not None:
            check_new_password(wanted.password, "password", wanted.email, wanted.name)
        password_hash = None if wanted.password is None else await services.passwords.hash(wanted.password)
        async with services.database.transaction() as conn:
            if wanted.password is not None or wanted.role is not None:
                await check_may_admit(conn, caller)
            row = await users.create_user(
                conn,
                caller.organization_id,
                email=wanted.email.lower(),
                name=wanted.name,
                role=wanted.role,
                password_hash=password_hash,
            )
            if row is None:
                raise Conflict(f"There is already a user with the address '{wanted.email}'.", param="email")
            await audit.record(conn, audit_author(caller), "user.added", row.id, after=user_wire(row))
        return user_wire(row)

    @get("/{user_id:str}", opt=needs("users.read"))
    async def get_user(self, user_id: FromPath[str], services: Services, caller: Caller) -> User:
        """Return a user."""
        async with services.database.acquire() as conn:
            row = await existing_user(conn, caller.organization_id, user_id)
            return user_wire(row, is_locked_out=user_id in await _locked_out(conn, services, caller))

    @post("/{user_id:str}", status_code=200, opt=needs("users.write", body=ModifyUser))
    async def modify_user(
        self, user_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> User:
        """Change the name or the role of a user."""
        wanted = await read_body(request, ModifyUser)
        if wanted.name is not UNSET:
            check_name(wanted.name)
        async with services.database.transaction() as conn:
            owners = await users.lock_owners(conn, caller.organization_id)
            before = await existing_user(conn, caller.organization_id, user_id, lock=True)
            name = before.name if wanted.name is UNSET else wanted.name
            role = before.role if wanted.role is UNSET else wanted.role
            check_grant(caller, role_permissions(before.role) | role_permissions(role))
            if role is not None and role != before.role:
                await check_may_admit(conn, caller)
            if role != "owner":
                _check_another_owner(owners, user_id)
            if (name, role) == (before.name, before.role):
                return user_wire(before, is_locked_out=user_id in await _locked_out(conn, services, caller))
            await users.modify_user(conn, caller.organization_id, user_id, name, role)
            after = await existing_user(conn, caller.organization_id, user_id)
            await audit.record(
                conn, audit_author(caller), "user.updated", user_id, before=user_wire(before), after=user_wire(after)
            )
            return user_wire(after, is_locked_out=user_id in await _locked_out(conn, services, caller))

    @post("/{user_id:str}/reset", status_code=200, opt=needs("users.write", body=ResetUser))
    async def reset_user(
        self, user_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> User:
        """Give a user a new password.

        The user's authenticator, passkeys, logins and lockout are removed. A key that is held to networks or to a date
        cannot do this.
        """
        wanted = await read_body(request, ResetUser)
        password_hash = await services.passwords.hash(wanted.password)
        async with services.database.transaction() as conn:
            before = await existing_user(conn, caller.organization_id, user_id, lock=True)
            check_grant(caller, role_permissions(before.role))
            await check_may_admit(conn, caller)
            check_new_password(wanted.password, "password", before.email, before.name)
            await logins.set_password_hash(conn, user_id, password_hash)
            await logins.set_totp_secret(conn, user_id, None)
            await passkeys.remove_passkeys(conn, user_id)
            await logins.revoke_logins(conn, user_id)
            await unlock(conn, before.email)
            after = await existing_user(conn, caller.organization_id, user_id)
            await audit.record(
                conn, audit_author(caller), "user.reset", user_id, before=user_wire(before), after=user_wire(after)
            )
        return user_wire(after)

    @get("/{user_id:str}/api_keys", opt=needs("users.read", query=LIST_QUERY))
    async def list_user_keys(
        self, user_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[OwnedKey]:
        """List the keys that a user owns. Operators' keys are shown to callers who may read them."""
        authorize(caller, "keys.read", None)
        with_admin = "admin_keys.read" in caller.permissions
        query = read_list_query(request.query_params)
        owner = (caller.organization_id, user_id)
        async with services.database.acquire() as conn:
            await existing_user(conn, *owner)
            if query.after and not await keys.get_owned_key(conn, *owner, query.after, with_admin=with_admin):
                raise unknown_cursor(query.after)
            rows = await keys.list_owned_keys(
                conn, *owner, with_admin=with_admin, after=query.after, limit=query.limit + 1
            )
        return page([owned_key(row) for row in rows], query.limit)

    @delete("/{user_id:str}", status_code=200, opt=needs("users.write"))
    async def remove_user(self, user_id: FromPath[str], services: Services, caller: Caller) -> DeletedUser:
        """Delete a user. The user's logins, memberships and keys end."""
        async with services.database.transaction() as conn:
            owners = await users.lock_owners(conn, caller.organization_id)
            before = await existing_user(conn, caller.organization_id, user_id, lock=True)
            check_grant(caller, role_permissions(before.role))
            _check_another_owner(owners, user_id)
            revoked = await users.remove_user(conn, caller.organization_id, user_id)
            shown = with_revoked_keys(user_wire(before), revoked)
            await audit.record(conn, audit_author(caller), "user.deleted", user_id, before=shown)
        return DeletedUser(user_id)


async def existing_user(conn: Connection, organization_id: str, user_id: str, *, lock: bool = False) -> users.UserRow:
    """Return a user of the organization. lock: True locks the user until the transaction ends.

    Raises NotFound: when the organization has no user with this id, whether or not another organization has.
    """
    row = await (users.lock_user if lock else users.get_user)(conn, organization_id, user_id)
    if row is None:
        raise NotFound(f"No user has the id '{user_id}'.", param="user_id")
    return row


def check_new_password(password: str, param: str, *about: str) -> None:
    """Check that a new password is not among those that guessers try first.

    about: facts about its user, such as the name.

    Raises InvalidRequest: when the password is among them.
    """
    if is_common(password, *about):
        raise InvalidRequest(
            f"Invalid value for '{param}': this password is common, or made of the user's own data. Choose one "
            "that is hard to guess, for example four words that have nothing to do with each other.",
            param=param,
            code="common_password",
        )


def check_email(email: str) -> None:
    """Check that a text has the form of an e-mail address.

    Raises InvalidRequest: when the text has another form.
    """
    if _EMAIL.fullmatch(email) is None:
        raise wrong_value("email", "expected an e-mail address")


async def _locked_out(conn: Connection, services: AdminServices, caller: Actor) -> set[str]:
    return {each.user_id for each in await services.logins.locked_out(conn, caller.organization_id)}


def user_wire(row: users.UserRow, *, is_locked_out: bool = False) -> User:
    """Return a user as the admin API shows it.

    is_locked_out: True if the user's only passkeys belong to a former host name of this server.
    """
    return User(
        id=row.id,
        name=row.name,
        email=row.email,
        role=row.role,
        added_at=unix_seconds(row.created_at),
        has_password=row.has_password,
        has_totp=row.has_totp,
        num_passkeys=row.num_passkeys,
        is_locked_out=is_locked_out,
    )


def _check_another_owner(owners: list[str], user_id: str) -> None:
    if owners == [user_id]:
        raise Conflict(
            "This user is the last owner of the organization. Make somebody else an owner first.",
            param="user_id",
            code="last_owner",
        )
