"""The versions of an adapter over HTTP: the state of each, and the current one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath

from gateway.admin.access import LIST_QUERY, Nothing, needs, read_body
from gateway.admin.adapters.adapter_wire import (
    Adapter,
    AdapterVersion,
    AdapterVersionDetail,
    DeletedAdapterVersion,
    version_fields,
)
from gateway.admin.adapters.adapters import locked_adapter, make_current, no_such_adapter
from gateway.admin.adapters.experiment_holds import check_not_in_experiment
from gateway.admin.common import audit_author
from gateway.admin.organization.projects import active_project, existing_project
from gateway.admin.paging import Page, page, read_list_query, unknown_cursor
from gateway.admin.services import Caller, Services
from gateway.db.adapters import adapter_versions, adapters
from gateway.db.adapters.adapter_versions import VersionRow
from gateway.db.experiments.arms import experiments_of_adapter
from gateway.db.organization import audit
from gateway.domain.errors import Conflict, NotFound

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_VERSION_DIGITS = 9


class AdapterVersionController(Controller):
    """Endpoints for the versions of an adapter."""

    path = "/projects/{project_id:str}/adapters/{name:str}/versions"

    @get(opt=needs("adapters.read", query=LIST_QUERY))
    async def list_adapter_versions(
        self,
        project_id: FromPath[str],
        name: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> Page[AdapterVersion]:
        """List the versions of an adapter, the newest first, rejected and retired ones included."""
        query = read_list_query(request.query_params)
        before = _cursor(name, query.after) if query.after else None
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            adapter = await adapters.find_adapter(conn, project_id, name)
            if adapter is None:
                raise no_such_adapter(name)
            rows = await adapter_versions.list_versions(conn, adapter.id, before=before, limit=query.limit + 1)
        return page(
            [AdapterVersion(**version_fields(row, services.bases, project_id, caller.organization_id)) for row in rows],
            query.limit,
        )

    @get("/{version:str}", opt=needs("adapters.read"))
    async def get_adapter_version(
        self,
        project_id: FromPath[str],
        name: FromPath[str],
        version: FromPath[str],
        services: Services,
        caller: Caller,
    ) -> AdapterVersionDetail:
        """Return a version of an adapter, with the findings of its inspection."""
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            adapter = await adapters.find_adapter(conn, project_id, name)
            if adapter is None:
                raise no_such_adapter(name)
            row = await _existing(conn, adapter, version)
        return AdapterVersionDetail(
            **version_fields(row, services.bases, project_id, caller.organization_id),
            report=row.report,
            probe=row.probe,
        )

    @post("/{version:str}/promote", status_code=200, opt=needs("adapters.write", body=Nothing))
    async def promote_adapter_version(
        self,
        project_id: FromPath[str],
        name: FromPath[str],
        version: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> Adapter:
        """Make a ready version the current one, on every gateway within a second."""
        await read_body(request, Nothing)
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            adapter = await locked_adapter(conn, project_id, name)
            row = await _existing(conn, adapter, version)
            return await make_current(conn, services, caller, adapter, row.version, "adapter.promoted")

    @post("/{version:str}/retire", status_code=200, opt=needs("adapters.write", body=Nothing))
    async def retire_adapter_version(
        self,
        project_id: FromPath[str],
        name: FromPath[str],
        version: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> AdapterVersion:
        """Take a version out of use for good. Its content stays until the version is deleted."""
        await read_body(request, Nothing)
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            adapter = await locked_adapter(conn, project_id, name)
            before = await _existing(conn, adapter, version)
            shown = AdapterVersion(**version_fields(before, services.bases, project_id, caller.organization_id))
            if before.state == "retired":
                return shown
            if before.current:
                raise Conflict(
                    f"Version {before.version} of '{name}' is the current version. Promote another version first."
                )
            if aliases := await adapters.aliases_of(conn, adapter.id, before.version):
                raise _conflict_of_aliases(before, aliases)
            held = await experiments_of_adapter(conn, adapter.id, before.version)
            check_not_in_experiment(held, f"Version {before.version} of '{name}'")
            if not await adapter_versions.move_version(conn, adapter.id, before.version, "ready", "retired"):
                raise Conflict(
                    f"Version {before.version} of '{name}' is '{before.state}'; only a version that is 'ready' can be "
                    "retired."
                )
            after = AdapterVersion(
                **version_fields(
                    await _existing(conn, adapter, version), services.bases, project_id, caller.organization_id
                )
            )
            event = "adapter_version.retired"
            await audit.record(
                conn, audit_author(caller), event, adapter.id, project_id=project_id, before=shown, after=after
            )
        return after

    @delete("/{version:str}", status_code=200, opt=needs("adapters.write"))
    async def delete_adapter_version(
        self,
        project_id: FromPath[str],
        name: FromPath[str],
        version: FromPath[str],
        services: Services,
        caller: Caller,
    ) -> DeletedAdapterVersion:
        """Delete a version that was retired or rejected. Its number is never used again."""
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            adapter = await locked_adapter(conn, project_id, name)
            before = await _existing(conn, adapter, version)
            if before.state not in ("retired", "rejected"):
                raise Conflict(f"Version {before.version} of '{name}' is '{before.state}'. Retire the version first.")
            await adapter_versions.move_version(conn, adapter.id, before.version, before.state, "deleted")
            shown = AdapterVersion(**version_fields(before, services.bases, project_id, caller.organization_id))
            event = "adapter_version.deleted"
            await audit.record(conn, audit_author(caller), event, adapter.id, project_id=project_id, before=shown)
        return DeletedAdapterVersion(shown.id)


async def _existing(conn: Connection, adapter: adapters.AdapterRow, version: str) -> VersionRow:
    """Return a version of an adapter.

    Raises NotFound: when the adapter has no such version.
    """
    number = _number(version)
    row = await adapter_versions.find_version(conn, adapter.id, number) if number is not None else None
    if row is None:
        raise NotFound(f"The adapter '{adapter.name}' has no version '{version}'.", param="version")
    return row


def _conflict_of_aliases(row: VersionRow, names: list[str]) -> Conflict:
    shown = ", ".join(f"'{name}'" for name in names[:10])
    return Conflict(
        f"Aliases point at version {row.version} of '{row.name}': {shown}. Move or remove these aliases first."
    )


def _number(text: str) -> int | None:
    good = text.isascii() and text.isdecimal() and len(text) <= MAX_VERSION_DIGITS
    return int(text) if good else None


def _cursor(name: str, after: str) -> int:
    """Return the number in a version's id. Raises InvalidRequest: when the id names no version of this adapter."""
    owner, _, text = after.rpartition("@")
    number = _number(text)
    if owner != name or number is None:
        raise unknown_cursor(after)
    return number
