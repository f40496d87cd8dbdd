"""Webhooks over HTTP: the URLs that are called about limits, experiments and background responses."""

from __future__ import annotations

import datetime
import secrets
from typing import Annotated, Any, Literal

import httpx
import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath
from msgspec import Meta

from gateway.admin.access import LIST_QUERY, needs, read_body
from gateway.admin.common import audit_author, check_address, seconds_or_none, unix_seconds
from gateway.admin.paging import Page, page, read_list_query, unknown_cursor
from gateway.admin.services import Caller, Services
from gateway.db.limits import webhooks
from gateway.db.organization import audit
from gateway.db.organization.organizations import lock_organization
from gateway.domain.errors import InvalidRequest, NotFound
from gateway.support.outbound import names_private_address
from gateway.webhooks.sender import shown_secret

SECRET_BYTES = 32
DAY_S = 86400
MAX_GRACE_S = 30 * DAY_S
MAX_WEBHOOKS = 20


WebhookEvent = Literal[
    "limit.threshold_reached",
    "experiment.paused",
    "response.completed",
    "response.incomplete",
    "response.failed",
    "response.cancelled",
    "batch.completed",
    "batch.failed",
    "batch.expired",
    "batch.cancelled",
]
"""The name of an event that webhooks can be called for; `response.` stands for background responses."""

Events = Annotated[list[WebhookEvent], Meta(min_length=1, max_length=16)]


class CreateWebhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new webhook."""

    url: Annotated[str, Meta(min_length=1, max_length=2048)]
    events: Events | None = None
    """The events that the webhook is called for; if left out, all events about limits and experiments."""


class Webhook(msgspec.Struct, frozen=True):
    """A URL that is called for events of an organization and its projects."""

    id: str
    url: str
    created_at: int
    """Unix seconds."""
    events: list[str]
    """The events that the webhook is called for."""
    last_delivered_at: int | None = None
    """Unix seconds; null where no message was delivered yet."""
    last_failed_at: int | None = None
    """Unix seconds; null where no attempt failed yet."""
    last_error: str | None = None
    """The error of the attempt at last_failed_at. Later messages may have been delivered."""
    object: Literal["organization.webhook"] = "organization.webhook"


class CreatedWebhook(Webhook, frozen=True, kw_only=True):
    """A new webhook with its secret."""

    secret: str
    """The secret that signs the messages. It is shown this once."""


class RotateWebhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The order to give a webhook a new secret."""

    grace_seconds: Annotated[int, Meta(ge=0, le=MAX_GRACE_S)] = DAY_S
    """Seconds for which messages are signed with the former secret as well."""


class RotatedWebhook(CreatedWebhook, frozen=True, kw_only=True):
    """A webhook with a new secret."""

    previous_secret_expires_at: int | None = None
    """The Unix time in seconds until which messages are signed with the former secret too; null where none are."""


class DeletedWebhook(msgspec.Struct, frozen=True):
    """A webhook that was deleted."""

    id: str
    deleted: Literal[True] = True
    object: Literal["organization.webhook.deleted"] = "organization.webhook.deleted"


class WebhookController(Controller):
    """Endpoints for the webhooks of the organization."""

    path = "/webhooks"

    @get(opt=needs("limits.read", query=LIST_QUERY))
    async def list_webhooks(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> Page[Webhook]:
        """List the webhooks of the organization."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            known = {row.id for row in await webhooks.list_webhooks(conn, caller.organization_id)}
            if query.after and query.after not in known:
                raise unknown_cursor(query.after)
            rows = await webhooks.list_webhooks(conn, caller.organization_id, after=query.after, limit=query.limit + 1)
        return page([Webhook(**_fields(row)) for row in rows], query.limit)

    @post(status_code=200, opt=needs("limits.write", body=CreateWebhook))
    async def create_webhook(
        self, request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> CreatedWebhook:
        """Create a webhook. The reply shows its secret this once."""
        wanted = await read_body(request, CreateWebhook)
        check_address(wanted.url, "url")
        _check_url(wanted.url, allow_private=services.private_webhooks)
        secret = secrets.token_bytes(SECRET_BYTES)
        async with services.database.transaction() as conn:
            await lock_organization(conn, caller.organization_id)
            if len(await webhooks.list_webhooks(conn, caller.organization_id)) >= MAX_WEBHOOKS:
                raise InvalidRequest(
                    f"There are already {MAX_WEBHOOKS} webhooks, the most there can be. Delete one first."
                )
            webhook_id = webhooks.new_webhook_id()
            sealed = services.secrets.seal(secret, "webhooks.secret", caller.organization_id, webhook_id)
            row = await webhooks.create_webhook(
                conn,
                webhook_id,
                caller.organization_id,
                wanted.url,
                content_key=sealed.key_id,
                secret=sealed.data,
                events=list(dict.fromkeys(wanted.events or webhooks.DEFAULT_EVENTS)),
            )
            await audit.record(conn, audit_author(caller), "webhook.created", row.id, after=Webhook(**_fields(row)))
        return CreatedWebhook(**_fields(row), secret=shown_secret(secret))

    @post("/{webhook_id:str}/rotate", status_code=200, opt=needs("limits.write", body=RotateWebhook))
    async def rotate_webhook(
        self, webhook_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> RotatedWebhook:
        """Give a webhook a new secret. The reply shows the secret this once.

        Messages are signed with the former secret as well for the grace period, a day unless the body says otherwise.
        """
        wanted = await read_body(request, RotateWebhook)
        secret, organization_id = secrets.token_bytes(SECRET_BYTES), caller.organization_id
        async with services.database.transaction() as conn:
            present = await webhooks.lock_secret(conn, organization_id, webhook_id)
            if present is None:
                raise NotFound(f"There is no webhook with the id '{webhook_id}'.", param="webhook_id")
            former = None
            if wanted.grace_seconds:
                clear = services.secrets.open(
                    present.content_key, present.secret, "webhooks.secret", organization_id, webhook_id
                )
                former = services.secrets.seal(clear, "webhooks.former_secret", organization_id, webhook_id)
            sealed = services.secrets.seal(secret, "webhooks.secret", organization_id, webhook_id)
            row, until = await webhooks.rotate_secret(
                conn,
                organization_id,
                webhook_id,
                webhooks.SealedSecret(sealed.key_id, sealed.data),
                webhooks.SealedSecret(former.key_id, former.data) if former else None,
                datetime.timedelta(seconds=wanted.grace_seconds),
            )
            shown = Webhook(**_fields(row))
            await audit.record(conn, audit_author(caller), "webhook.rotated", row.id, before=shown, after=shown)
        return RotatedWebhook(
            **_fields(row), secret=shown_secret(secret), previous_secret_expires_at=seconds_or_none(until)
        )

    @delete("/{webhook_id:str}", status_code=200, opt=needs("limits.write"))
    async def remove_webhook(self, webhook_id: FromPath[str], services: Services, caller: Caller) -> DeletedWebhook:
        """Delete a webhook."""
        async with services.database.transaction() as conn:
            row = await webhooks.remove_webhook(conn, caller.organization_id, webhook_id)
            if row is None:
                raise NotFound(f"There is no webhook with the id '{webhook_id}'.", param="webhook_id")
            await audit.record(conn, audit_author(caller), "webhook.deleted", row.id, before=Webhook(**_fields(row)))
        return DeletedWebhook(webhook_id)


def _check_url(text: str, *, allow_private: bool) -> None:
    """Check the form of a URL, and the IP address if it has one in place of a host name.

    The addresses of a name are checked each time a message is sent.

    allow_private: True: private addresses are allowed, too.
    """
    try:
        url = httpx.URL(text)
        is_good = url.scheme in ("http", "https") and bool(url.host) and not url.userinfo
        is_good = is_good and (url.port is None or 0 < url.port < 2**16)
        is_private = is_good and names_private_address(url)
    except (httpx.InvalidURL, ValueError):  # the latter for a host that is no internationalized name
        is_good = is_private = False
    if not is_good:
        raise InvalidRequest(
            "Invalid value for 'url': expected a URL with http or https and without a user name.",
            param="url",
            code="invalid_value",
        )
    if is_private and not allow_private:
        raise InvalidRequest(
            "Invalid value for 'url': the setting LORIKEET_PRIVATE_WEBHOOKS has to allow private addresses first.",
            param="url",
            code="invalid_value",
        )


def _fields(row: webhooks.WebhookRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "url": row.url,
        "created_at": unix_seconds(row.created_at),
        "events": row.events,
        "last_delivered_at": seconds_or_none(row.last_delivered_at),
        "last_failed_at": seconds_or_none(row.last_failed_at),
        "last_error": row.last_error,
    }
