"""Keys that projects bring for the servers of other makers behind a model: set and removed, never shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath
from msgspec import Meta

from gateway.admin.access import LIST_QUERY, needs, read_body
from gateway.admin.common import audit_author, unix_seconds
from gateway.admin.organization.projects import active_project, existing_project
from gateway.admin.paging import Page, page_of_all, read_list_query, wrong_value
from gateway.admin.pools.pool_bodies import BearerKey
from gateway.admin.services import Caller, Services
from gateway.db.organization import audit
from gateway.db.pools.managed import UsableBase, list_usable
from gateway.db.pools.provider_keys import (
    ProviderKeyRow,
    find_provider_key,
    hold_pool,
    list_provider_keys,
    provider_key_of_pool,
    remove_provider_key,
)
from gateway.domain.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class SetProviderKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A project's own key for the servers behind a model."""

    model: Annotated[str, Meta(min_length=1, max_length=256, pattern="^[^\\x00-\\x1f]+$")]
    """The name of a base model whose servers take keys of projects."""
    key: BearerKey
    """The key as the servers take it, sent to them as a bearer token. It is kept encrypted and never shown again."""


class ProviderKey(msgspec.Struct, frozen=True):
    """The facts that are shown about a project's own key for the servers behind a model."""

    id: str
    model: str
    """The name of the base model."""
    pool_id: str
    hint: str
    """The last four characters of the key; empty where the key has fewer than 16."""
    created_at: int
    """Unix seconds at which the project first set a key for the model."""
    changed_at: int
    """Unix seconds at which the present key was set."""
    object: Literal["organization.project.provider_key"] = "organization.project.provider_key"


class DeletedProviderKey(msgspec.Struct, frozen=True):
    """A project's own key that was removed."""

    id: str
    deleted: Literal[True] = True
    object: Literal["organization.project.provider_key.deleted"] = "organization.project.provider_key.deleted"


class ProviderKeyController(Controller):
    """Endpoints for the keys of a project for servers of other makers."""

    path = "/projects/{project_id:str}/provider_keys"

    @get(opt=needs("keys.read", query=LIST_QUERY))
    async def list_provider_keys(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[ProviderKey]:
        """List the keys that a project has brought for servers of other makers, without the keys themselves."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            rows = await list_provider_keys(conn, project_id)
        return page_of_all([_wire(row) for row in rows], query)

    @post(status_code=200, opt=needs("keys.write", body=SetProviderKey))
    async def set_provider_key(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> ProviderKey:
        """Set a project's own key for the servers behind a model, in place of the one before.

        Requests use the key within a second, and are charged for no tokens from then on.
        """
        wanted = await read_body(request, SetProviderKey)
        async with services.database.transaction() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            base = await _base(conn, caller.organization_id, project_id, wanted.model)
            if not await hold_pool(conn, base.id):
                raise _no_such_model()
            await active_project(conn, caller.organization_id, project_id)
            before = await provider_key_of_pool(conn, project_id, base.id)
            await services.provider_keys.keep(conn, project_id, base.id, wanted.key)
            key_row = await provider_key_of_pool(conn, project_id, base.id)
            assert key_row is not None
            await audit.record(
                conn,
                audit_author(caller),
                "provider_key.set",
                key_row.id,
                project_id=project_id,
                before=None if before is None else _terms(before),
                after=_terms(key_row),
            )
        return _wire(key_row)

    @delete("/{provider_key_id:str}", status_code=200, opt=needs("keys.write"))
    async def remove_provider_key(
        self, project_id: FromPath[str], provider_key_id: FromPath[str], services: Services, caller: Caller
    ) -> DeletedProviderKey:
        """Forget a project's own key.

        Requests of the project get the operator's key, and are charged, or are refused where the model needs a key of
        the project.
        """
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            before = await find_provider_key(conn, project_id, provider_key_id)
            if before is None:
                raise NotFound(
                    f"The project has no provider key with the id '{provider_key_id}'.", param="provider_key_id"
                )
            await remove_provider_key(conn, project_id, provider_key_id)
            await audit.record(
                conn,
                audit_author(caller),
                "provider_key.removed",
                provider_key_id,
                project_id=project_id,
                before=_terms(before),
            )
        return DeletedProviderKey(provider_key_id)


async def _base(conn: Connection, organization_id: str, project_id: str, model: str) -> UsableBase:
    """Return the base model of this name, for whose servers the project may bring a key.

    Raises InvalidRequest: when the project can use no such model; the error does not tell whether others can.
    """
    for each in await list_usable(conn, organization_id, project_id):
        if each.name == model and each.own_keys != "none":
            return each
    raise _no_such_model()


def _no_such_model() -> InvalidRequest:
    return wrong_value("model", "the project has no base model of this name whose servers take keys of projects")


def _terms(row: ProviderKeyRow) -> dict[str, str]:
    return {"model": row.model, "hint": row.hint}


def _wire(row: ProviderKeyRow) -> ProviderKey:
    return ProviderKey(
        row.id, row.model, row.pool_id, row.hint, unix_seconds(row.created_at), unix_seconds(row.changed_at)
    )
