"""Projects over HTTP. A tenant is a project."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, get, post
from litestar.params import FromPath

from gateway.admin.access import LIST_QUERY, Nothing, needs, read_body
from gateway.admin.common import Name, audit_author, check_name, seconds_or_none, unix_seconds, with_revoked_keys
from gateway.admin.paging import Page, page, read_flag, read_list_query, unknown_cursor, wrong_value
from gateway.admin.services import AdminServices, Caller, Services
from gateway.db.organization import audit, projects
from gateway.domain.errors import Conflict
from gateway.domain.tenancy.actor import Actor
from gateway.domain.tenancy.permissions import no_such_project, projects_with
from gateway.domain.tenancy.principal import ServiceTier

if TYPE_CHECKING:
    from gateway.db.pool import Connection

RETENTION_DAYS = 30
MAX_RETENTION_DAYS = 3650
MAX_STORE_DAYS = 365
MAX_LOG_CONTENT_DAYS = 365


class CreateProject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new project."""

    name: Name


class ModifyProject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """New settings of a project. A field that is left out stays as it is."""

    name: Name | msgspec.UnsetType = msgspec.UNSET
    keep_replies: bool | msgspec.UnsetType = msgspec.UNSET
    """True if replies to requests with an Idempotency-Key may be stored for a day, encrypted."""
    store_days: Annotated[int, msgspec.Meta(ge=0, le=MAX_STORE_DAYS)] | msgspec.UnsetType = msgspec.UNSET
    """Days for which completions are stored whose request asks for it with `store`. 0 stores none."""
    log_content_days: Annotated[int, msgspec.Meta(ge=0, le=MAX_LOG_CONTENT_DAYS)] | msgspec.UnsetType = msgspec.UNSET
    """Days for which the content of all requests is stored, redacted and encrypted, for people who may read it. 0
    stores none."""
    service_tiers: Annotated[list[ServiceTier], msgspec.Meta(min_length=1, max_length=3)] | msgspec.UnsetType = (
        msgspec.UNSET
    )
    """The service tiers that requests may ask for, `default` among them. A request of the tier `priority` gets twice
    the service of one of `default` while the engine is saturated."""


class LogContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The time for which the content of requests is stored."""

    log_content_days: Annotated[int, msgspec.Meta(ge=0, le=MAX_LOG_CONTENT_DAYS)]
    """Days for which the content of all requests is stored, redacted and encrypted, for people who may read it. 0
    stores none."""


class ArchiveProject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The order to end a project."""

    retention_days: Annotated[int, msgspec.Meta(ge=0, le=MAX_RETENTION_DAYS)] = RETENTION_DAYS
    """Days for which the project's content is kept before it is deleted."""


class Project(msgspec.Struct, frozen=True):
    """A project, which is a tenant."""

    id: str
    name: str
    created_at: int
    """Unix seconds."""
    archived_at: int | None
    """Unix seconds; null while the project is not archived."""
    suspended_at: int | None
    """Unix seconds; null while the project is not suspended."""
    purge_after: int | None
    """Unix seconds after which the content of an archived project is deleted."""
    keep_replies: bool
    """True if replies to requests with an Idempotency-Key may be stored for a day, encrypted."""
    store_days: int
    """Days for which completions are stored whose request asks for it with `store`."""
    log_content_days: int
    """Days for which the content of all requests is stored, redacted and encrypted."""
    service_tiers: list[ServiceTier]
    """The service tiers that requests may ask for."""
    status: Literal["active", "suspended", "archived"]
    object: Literal["organization.project"] = "organization.project"


class ProjectController(Controller):
    """Endpoints for the projects of the organization."""

    path = "/projects"

    @get(opt=needs("projects.read", query=(*LIST_QUERY, "name", "include_archived"), in_any_project=True))
    async def list_projects(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> Page[Project]:
        """List the projects that the caller may see."""
        query = read_list_query(request.query_params)
        archived = read_flag(request.query_params, "include_archived")
        name, only = request.query_params.get("name"), projects_with(caller, "projects.read")
        async with services.database.acquire() as conn:
            if name is not None:
                found = await projects.find_project(conn, caller.organization_id, name)
                shown = found and (only is None or found.id in only)
                return page([_wire(found)] if found and shown else [], query.limit)
            if query.after and not await _is_visible(conn, caller.organization_id, query.after, only):
                raise unknown_cursor(query.after)
            rows = await projects.list_projects(
                conn, caller.organization_id, after=query.after, limit=query.limit + 1, archived=archived, only=only
            )
        return page([_wire(row) for row in rows], query.limit)

    @post(status_code=200, opt=needs("projects.write", body=CreateProject))
    async def create_project(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> Project:
        """Create a project, which is a tenant."""
        wanted = await read_body(request, CreateProject)
        check_name(wanted.name)
        async with services.database.transaction() as conn:
            row = await projects.create_project(conn, caller.organization_id, wanted.name)
            if row is None:
                raise _name_taken(wanted.name)
            await audit.record(
                conn, audit_author(caller), "project.created", row.id, project_id=row.id, after=_wire(row)
            )
        return _wire(row)

    @get("/{project_id:str}", opt=needs("projects.read"))
    async def get_project(self, project_id: FromPath[str], services: Services, caller: Caller) -> Project:
        """Return a project."""
        async with services.database.acquire() as conn:
            return _wire(await existing_project(conn, caller.organization_id, project_id))

    @post("/{project_id:str}", status_code=200, opt=needs("projects.write", body=ModifyProject))
    async def modify_project(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Project:
        """Change the name of a project, what of its content may be stored, and the service tiers that it may use."""
        wanted = await read_body(request, ModifyProject)
        if isinstance(wanted.service_tiers, list):
            if "default" not in wanted.service_tiers:
                raise wrong_value("service_tiers", "expected 'default' among them")
            wanted = msgspec.structs.replace(wanted, service_tiers=sorted(set(wanted.service_tiers)))
        if isinstance(wanted.name, str):
            check_name(wanted.name)
        return await _modify(services, caller, project_id, wanted)

    @post("/{project_id:str}/content_logging", status_code=200, opt=needs("content.write", body=LogContent))
    async def log_project_content(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Project:
        """Set for how many days the content of a project's requests is stored. The tenant's own people decide this."""
        wanted = await read_body(request, LogContent)
        return await _modify(services, caller, project_id, ModifyProject(log_content_days=wanted.log_content_days))

    @post("/{project_id:str}/suspend", status_code=200, opt=needs("projects.write", body=Nothing))
    async def suspend_project(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Project:
        """Refuse the API keys of a project, in every gateway within a second, until it is resumed."""
        await read_body(request, Nothing)
        return await _set_suspended(services, caller, project_id, True)

    @post("/{project_id:str}/resume", status_code=200, opt=needs("projects.write", body=Nothing))
    async def resume_project(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Project:
        """Let the API keys of a suspended project work again."""
        await read_body(request, Nothing)
        return await _set_suspended(services, caller, project_id, False)

    @post("/{project_id:str}/archive", status_code=200, opt=needs("projects.write", body=ArchiveProject))
    async def archive_project(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Project:
        """End a project for good.

        The project's keys stop working at once, its name is free, and its content is deleted after the retention.
        """
        wanted = await read_body(request, ArchiveProject)
        async with services.database.transaction() as conn:
            before = await existing_project(conn, caller.organization_id, project_id, lock=True)
            if before.archived_at is not None:
                return _wire(before)
            retention = datetime.timedelta(days=wanted.retention_days)
            revoked = await projects.archive_project(conn, caller.organization_id, project_id, retention)
            return await _record_change(
                conn, caller, "project.archived", before, with_revoked_keys(_wire(before), revoked)
            )


async def existing_project(
    conn: Connection, organization_id: str, project_id: str, *, lock: bool = False
) -> projects.ProjectRow:
    """Return a project of the organization.

    lock: True: nobody else changes the project, or what belongs to it, until the transaction ends.

    Raises NotFound: when the organization has no project with this id, whether or not another organization has.
    """
    find = projects.lock_project if lock else projects.get_project
    row = await find(conn, organization_id, project_id)
    if row is None:
        raise no_such_project(project_id)
    return row


async def active_project(conn: Connection, organization_id: str, project_id: str) -> projects.ProjectRow:
    """Lock a project for changes, as `existing_project` does.

    Raises Conflict: for an archived project.
    """
    row = await existing_project(conn, organization_id, project_id, lock=True)
    if row.archived_at is not None:
        raise Conflict("The project is archived and cannot be changed.", param="project_id", code="project_archived")
    return row


async def _modify(services: AdminServices, caller: Actor, project_id: str, wanted: ModifyProject) -> Project:
    async with services.database.transaction() as conn:
        before = await active_project(conn, caller.organization_id, project_id)
        after = _with_changes(before, wanted)
        if after == before:
            return _wire(before)
        if after.name != before.name and not await projects.rename_project(
            conn, caller.organization_id, project_id, after.name
        ):
            raise _name_taken(after.name)
        if _retention(after) != _retention(before):
            await projects.set_retention(
                conn,
                caller.organization_id,
                project_id,
                keep_replies=after.keep_replies,
                store_days=after.store_days,
                log_content_days=after.log_content_days,
            )
        if after.service_tiers != before.service_tiers:
            await projects.set_service_tiers(conn, caller.organization_id, project_id, after.service_tiers)
        return await _record_change(conn, caller, "project.updated", before)


async def _set_suspended(services: AdminServices, caller: Actor, project_id: str, suspended: bool) -> Project:
    async with services.database.transaction() as conn:
        before = await active_project(conn, caller.organization_id, project_id)
        if (before.suspended_at is not None) == suspended:
            return _wire(before)
        await projects.set_project_suspended(conn, caller.organization_id, project_id, suspended)
        return await _record_change(conn, caller, "project.suspended" if suspended else "project.resumed", before)


async def _record_change(
    conn: Connection, caller: Actor, event: str, before: projects.ProjectRow, shown: object = None
) -> Project:
    """Record a change of a project in the audit log, and return the project as it is now.

    before: the project before the change. shown: the form of `before` that the audit log records; None: as it is.
    """
    after = _wire(await existing_project(conn, caller.organization_id, before.id))
    was = _wire(before) if shown is None else shown
    await audit.record(conn, audit_author(caller), event, before.id, project_id=before.id, before=was, after=after)
    return after


def _retention(row: projects.ProjectRow) -> tuple[bool, int, int]:
    return row.keep_replies, row.store_days, row.log_content_days


def _with_changes(row: projects.ProjectRow, wanted: ModifyProject) -> projects.ProjectRow:
    given = {name: value for name, value in msgspec.structs.asdict(wanted).items() if value is not msgspec.UNSET}
    return msgspec.structs.replace(row, **given)


async def _is_visible(conn: Connection, organization_id: str, project_id: str, only: list[str] | None) -> bool:
    if only is not None and project_id not in only:
        return False
    return await projects.get_project(conn, organization_id, project_id) is not None


def _name_taken(name: str) -> Conflict:
    return Conflict(f"There is already a project named '{name}'.", param="name")


def _wire(row: projects.ProjectRow) -> Project:
    return Project(
        id=row.id,
        name=row.archived_name or row.name,
        created_at=unix_seconds(row.created_at),
        archived_at=seconds_or_none(row.archived_at),
        suspended_at=seconds_or_none(row.suspended_at),
        purge_after=seconds_or_none(row.purge_after),
        keep_replies=row.keep_replies,
        store_days=row.store_days,
        log_content_days=row.log_content_days,
        service_tiers=row.service_tiers,
        status="archived" if row.archived_at else "suspended" if row.suspended_at else "active",
    )
