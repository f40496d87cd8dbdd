"""A project's aliases over HTTP: its own names of models, which it moves from version to version.

An alias that an experiment or a route holds can be neither moved nor removed. An experiment holds its name from its
start until it is decided, a route as long as it exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath
from msgspec import Meta

from gateway.admin.access import LIST_QUERY, needs, read_body
from gateway.admin.common import audit_author, unix_seconds
from gateway.admin.names import check_name, claim_name
from gateway.admin.organization.projects import active_project, existing_project
from gateway.admin.paging import Page, page_of_all, read_list_query, wrong_value
from gateway.admin.services import Caller, Services
from gateway.db.adapters import aliases
from gateway.db.organization import audit
from gateway.domain.errors import Conflict, NotFound

if TYPE_CHECKING:
    from gateway.db.pool import Connection

Version = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class MoveAlias(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The version of an adapter that an alias is to point at."""

    adapter: str
    version: Version


class CreateAlias(MoveAlias, frozen=True, forbid_unknown_fields=True):
    """A new alias and the version that it points at."""

    name: str
    """The model id of the alias. It has the form of an adapter's name and is not the name of a base model."""


class Alias(msgspec.Struct, frozen=True):
    """A model id of a project's own."""

    id: str
    name: str
    target_kind: Literal["version", "pool", "experiment", "route"]
    """The kind of thing that the alias stands for: a version of an adapter, the base model of a pool, an experiment, or
    a route."""
    adapter: str | None
    """The name of the adapter; null for other kinds."""
    version: int | None
    """The number of the version; null for other kinds."""
    pool: str | None
    """The name of the base model; for a version, the base that an experiment chose for it, or null."""
    experiment: str | None
    """The name of the experiment that holds the alias until it is decided; null for other kinds."""
    has_treatment: bool
    """True if requests get the defaults of the arm that an experiment has chosen, until the alias is moved."""
    created_at: int
    """Unix seconds."""
    moved_at: int
    """Unix seconds at which the alias last came to stand for something else."""
    object: Literal["organization.project.alias"] = "organization.project.alias"


class DeletedAlias(msgspec.Struct, frozen=True):
    """An alias that was removed."""

    name: str
    deleted: Literal[True] = True
    object: Literal["organization.project.alias.deleted"] = "organization.project.alias.deleted"


class AliasController(Controller):
    """Endpoints for the aliases of a project."""

    path = "/projects/{project_id:str}/aliases"

    @get(opt=needs("adapters.read", query=LIST_QUERY))
    async def list_aliases(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[Alias]:
        """List the aliases of a project."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            rows = await aliases.list_aliases(conn, project_id)
        return page_of_all([_wire(row) for row in rows], query)

    @post(status_code=200, opt=needs("adapters.write", body=CreateAlias))
    async def create_alias(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Alias:
        """Create an alias."""
        wanted = await read_body(request, CreateAlias)
        check_name("name", wanted.name, "alias")
        check_name("adapter", wanted.adapter)
        async with services.database.transaction() as conn:
            await claim_name(conn, services, caller.organization_id, project_id, wanted.name)
            adapter_id = await _target(conn, project_id, wanted)
            await aliases.create_alias(conn, project_id, wanted.name, adapter_id, wanted.version)
            made = await _existing_alias(conn, project_id, wanted.name)
            await audit.record(conn, audit_author(caller), "alias.created", made.id, project_id=project_id, after=made)
        return made

    @post("/{name:str}", status_code=200, opt=needs("adapters.write", body=MoveAlias))
    async def move_alias(
        self,
        project_id: FromPath[str],
        name: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> Alias:
        """Point an alias at another version. Requests within the next second may still get the former version."""
        wanted = await read_body(request, MoveAlias)
        check_name("adapter", wanted.adapter)
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            before = await _existing_alias(conn, project_id, name)
            _check_free(before)
            adapter_id = await _target(conn, project_id, wanted)
            if (before.adapter, before.version) == (wanted.adapter, wanted.version) and not before.has_treatment:
                return before
            await aliases.move_alias(conn, project_id, name, adapter_id, wanted.version)
            after = await _existing_alias(conn, project_id, name)
            await audit.record(
                conn, audit_author(caller), "alias.moved", after.id, project_id=project_id, before=before, after=after
            )
        return after

    @delete("/{name:str}", status_code=200, opt=needs("adapters.write"))
    async def remove_alias(
        self, project_id: FromPath[str], name: FromPath[str], services: Services, caller: Caller
    ) -> DeletedAlias:
        """Remove an alias."""
        async with services.database.transaction() as conn:
            await existing_project(conn, caller.organization_id, project_id, lock=True)
            before = await _existing_alias(conn, project_id, name)
            _check_free(before)
            await aliases.remove_alias(conn, project_id, name)
            await audit.record(
                conn, audit_author(caller), "alias.deleted", before.id, project_id=project_id, before=before
            )
        return DeletedAlias(name)


async def _existing_alias(conn: Connection, project_id: str, name: str) -> Alias:
    row = await aliases.find_alias(conn, project_id, name)
    if row is None:
        raise NotFound(f"The project has no alias named '{name}'.", param="name")
    return _wire(row)


def _check_free(alias: Alias) -> None:
    """Check that no experiment and no route holds the alias.

    Raises Conflict: when one does.
    """
    if alias.target_kind == "route":
        raise Conflict(
            f"The name '{alias.name}' is a route's. Update or delete the route.", param="name", code="held_by_route"
        )
    if alias.target_kind == "experiment":
        raise Conflict(
            f"The experiment '{alias.experiment}' holds the alias '{alias.name}'. Stop the experiment and decide.",
            param="name",
            code="held_by_experiment",
        )


async def _target(conn: Connection, project_id: str, wanted: MoveAlias) -> str:
    """Return the id of the adapter whose version an alias is to name.

    Raises InvalidRequest: when the project has no such version, whether or not another project has.
    """
    if not await aliases.has_adapter(conn, project_id, wanted.adapter):
        raise wrong_value("adapter", f"the project has no adapter named '{wanted.adapter}'")
    adapter_id = await aliases.find_target(conn, project_id, wanted.adapter, wanted.version)
    if adapter_id is None:
        raise wrong_value("version", f"the adapter '{wanted.adapter}' has no version {wanted.version} that is ready")
    return adapter_id


def _wire(row: aliases.AliasRow) -> Alias:
    return Alias(
        id=row.id,
        name=row.name,
        target_kind=row.target_kind,
        adapter=row.adapter,
        version=row.version,
        pool=row.pool,
        experiment=row.experiment,
        has_treatment=row.has_treatment,
        created_at=unix_seconds(row.created_at),
        moved_at=unix_seconds(row.moved_at),
    )
