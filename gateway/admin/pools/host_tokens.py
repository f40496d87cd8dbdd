"""Tokens of hosts over HTTP: an operator makes one, and a new machine joins with it, once."""

from __future__ import annotations

import datetime
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Request, post

from engine.curve import KEY_PATTERN
from engine.protocol import PROTOCOL_VERSION
from engine.version import VERSION
from gateway.admin.access import needs, read_body
from gateway.admin.common import Name, UnixTime, audit_author, check_name, unix_seconds
from gateway.admin.paging import wrong_value
from gateway.admin.services import Caller, Services
from gateway.db.ids import new_id
from gateway.db.organization import audit
from gateway.db.organization.organizations import first_organization
from gateway.db.pools import host_tokens
from gateway.domain.errors import InvalidCredentials, InvalidRequest, PermissionDenied
from gateway.domain.tenancy.actor import Actor
from gateway.http.fields import decode
from gateway.http.request.call import call_of
from gateway.http.shape import shape

if TYPE_CHECKING:
    from gateway.db.pool import Connection

PREFIX = "lkjoin_"
LASTS = datetime.timedelta(hours=1)
RETENTION = datetime.timedelta(days=1)
MAX_LABELS = 32
MAX_SKEW_S = 60.0
"""The most seconds by which the clocks of a host and of the gateway may differ: people compare their times."""
MAX_JOIN_BYTES = 4 << 10

_TOKEN_BYTES = 24
_LABEL = re.compile(r"[a-z0-9]([a-z0-9._/-]{0,61}[a-z0-9])?")

Label = Annotated[str, msgspec.Meta(max_length=63)]
Labels = Annotated[dict[Label, Label], msgspec.Meta(max_length=MAX_LABELS)]
Excluded = Annotated[
    dict[Label, Annotated[tuple[Label, ...], msgspec.Meta(min_length=1, max_length=MAX_LABELS)]],
    msgspec.Meta(max_length=MAX_LABELS),
]


class CreateHostToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A permission for one machine to join, within an hour."""

    name: Name | None = None
    """The name that the host gets; left out, the machine's own."""
    labels: Labels = {}
    """Labels that the host gets, such as `{"zone": "a"}`."""


class CreatedHostToken(msgspec.Struct, frozen=True, kw_only=True):
    """A new token, which is shown this once."""

    id: str
    token: str
    name: str | None
    labels: dict[str, str]
    created_at: int
    """Unix seconds."""
    expires_at: int
    """Unix seconds."""
    object: Literal["organization.host_token"] = "organization.host_token"


class JoinHost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine that joins, and the facts that it reports about itself."""

    token: Annotated[str, msgspec.Meta(max_length=100)]
    name: Name
    """The name of the machine, where the token has none."""
    public_key: Annotated[str, msgspec.Meta(pattern=KEY_PATTERN)]
    """The public key of the machine, which engines on other hosts check (CURVE, in Z85)."""
    protocol: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    """The version of the protocol between gateways and engines."""
    unix_time: UnixTime
    """The time by the clock of the machine, in Unix seconds."""


class JoinedHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host of the installation."""

    id: str
    name: str
    labels: dict[str, str]
    object: Literal["organization.host.joined"] = "organization.host.joined"


@post("/hosts/tokens", status_code=200, opt=needs("pools.write", body=CreateHostToken))
async def create_host_token(request: Request[Any, Any, Any], services: Services, caller: Caller) -> CreatedHostToken:
    """Create a token with which one machine may join the installation within an hour. The reply shows it this once."""
    wanted = await read_body(request, CreateHostToken)
    if wanted.name is not None:
        check_name(wanted.name)
    check_labels(wanted.labels)
    token = PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    async with services.database.transaction() as conn:
        await check_operator(conn, caller)
        await host_tokens.forget_tokens(conn, RETENTION)
        made = await host_tokens.create_token(
            conn,
            new_id("hosttoken"),
            host_tokens.digest_of(token),
            caller.organization_id,
            name=wanted.name,
            labels=wanted.labels,
            lasts=LASTS,
        )
        shown = {"name": made.name, "labels": made.labels, "expires_at": unix_seconds(made.expires_at)}
        await audit.record(conn, audit_author(caller), "host_token.created", made.id, after=shown)
    return CreatedHostToken(
        id=made.id,
        token=token,
        name=made.name,
        labels=made.labels,
        created_at=unix_seconds(made.created_at),
        expires_at=unix_seconds(made.expires_at),
    )


_join_decoder = msgspec.json.Decoder(JoinHost)


@post("/hosts/join", status_code=200, opt=shape(body=JoinHost), request_max_body_size=MAX_JOIN_BYTES)
async def join_host(request: Request[Any, Any, Any], services: Services) -> JoinedHost:
    """Join the installation as a host, with a token that an operator has made. A token is good for one host."""
    wanted = decode(_join_decoder, await request.body() or b"{}")
    if wanted.protocol != PROTOCOL_VERSION:
        raise InvalidRequest(
            f"The host speaks version {wanted.protocol} of the engines' protocol, the installation version "
            f"{PROTOCOL_VERSION}: install Lorikeet {VERSION} on the host.",
            param="protocol",
            code="version_skew",
        )
    now_s = datetime.datetime.now(datetime.UTC).timestamp()
    if abs(skew_s := wanted.unix_time - now_s) > MAX_SKEW_S:
        raise InvalidRequest(
            f"The clock of the host is {abs(skew_s):.0f} s {'ahead' if skew_s > 0 else 'behind'}: set it by NTP.",
            param="unix_time",
            code="clock_skew",
        )
    call = call_of(request.scope)
    async with services.database.transaction() as conn:
        token = await host_tokens.lock_token(conn, host_tokens.digest_of(wanted.token))
        if token is None or token.is_expired or token.host_id is not None:
            raise InvalidCredentials(
                "The token is wrong, was used already, or is older than an hour: have an operator create another one.",
                param="token",
            )
        name = token.name or wanted.name
        check_name(name)
        host_id = new_id("host")
        if not await host_tokens.join_host(conn, token, host_id, name, wanted.public_key):
            raise InvalidRequest(f"Another host has the name '{name}'.", param="name", code="host_name_taken")
        shown = {"name": name, "labels": token.labels, "token_id": token.id}
        by = audit.Author(
            organization_id=token.organization_id,
            kind="host_token",
            id=token.id,
            email=None,
            address=call.address,
            request_id=call.request_id,
        )
        await audit.record(conn, by, "host.joined", host_id, after=shown)
    return JoinedHost(id=host_id, name=name, labels=token.labels)


async def check_operator(conn: Connection, caller: Actor) -> None:
    """Check that the caller is of the installation's first organization, which has the machines.

    Raises PermissionDenied: when the caller is of another one.
    """
    first = await first_organization(conn)
    if first is None or first.id != caller.organization_id:
        raise PermissionDenied("Only the organization that operates this installation can manage hosts.")


def check_labels(labels: Mapping[str, str], field: str = "labels") -> None:
    """Check labels. field: the name of the request's field with the labels, for the error.

    Raises InvalidRequest: when a name or a value cannot be that of a label.
    """
    check_excluded({name: (value,) for name, value in labels.items()}, field)


def check_excluded(excluded: Mapping[str, Sequence[str]], field: str = "exclusion") -> None:
    """Check values of labels, by the labels' names. field: the name of the request's field with them, for the error.

    Raises InvalidRequest: when a name or a value cannot be that of a label.
    """
    for name, values in excluded.items():
        for part in (name, *values):
            if _LABEL.fullmatch(part) is None:
                raise wrong_value(
                    field, f"'{part}' is no label: lower-case letters, digits and . _ / - inside, at most 63"
                )
