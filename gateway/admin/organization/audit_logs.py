"""The audit log over HTTP, in OpenAI's shape, newest first, and the check of its chain of hashes."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from litestar import Controller, Request, get
from litestar.datastructures import MultiDict

from gateway.admin.access import LIST_QUERY, needs
from gateway.admin.common import unix_seconds
from gateway.admin.paging import Page, read_list_query, unknown_cursor, wrong_value
from gateway.admin.services import Caller, Services
from gateway.db.organization import audit
from gateway.domain.tenancy.permissions import projects_with

LISTS = {
    "project_ids[]": "project_ids",
    "event_types[]": "events",
    "actor_ids[]": "actor_ids",
    "actor_emails[]": "actor_emails",
    "resource_ids[]": "object_ids",
}
"""Query parameters, as OpenAI names them, and the fields of `AuditFilter` that they fill."""

TIMES = ("effective_at[gte]", "effective_at[lt]")
MAX_VALUES = 100
NO_PROJECT = ""
"""An id that no project has."""


class BrokenLink(msgspec.Struct, frozen=True):
    """The first place at which the chain of the audit log is broken."""

    sequence: int
    id: str | None
    """The id of the row; null where the row is missing."""
    reason: str


class Verification(msgspec.Struct, frozen=True):
    """The result of checking the audit log."""

    intact: bool
    num_rows: int
    head_hash: str
    """The hash of the last good row in hexadecimal. Note it elsewhere to compare it later."""
    first_broken: BrokenLink | None
    object: Literal["organization.audit_log.verification"] = "organization.audit_log.verification"


class AuditLogController(Controller):
    """Endpoints for the audit log."""

    path = "/audit_logs"

    @get(opt=needs("audit.read", query=(*LIST_QUERY, *LISTS, *TIMES), in_any_project=True))
    async def list_audit_logs(
        self, request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[dict[str, Any]]:
        """List the changes that people and keys made, the newest first.

        Owners and admins of projects see the changes of their own projects, whoever made them, without the network
        addresses of people and keys from outside of the project.
        """
        params = request.query_params
        query, wanted = read_list_query(params), _filter(params)
        projects = projects_with(caller, "audit.read")
        if projects is not None:
            within = [id for id in projects if id in wanted.project_ids or not wanted.project_ids]
            wanted = msgspec.structs.replace(wanted, project_ids=within or [NO_PROJECT])
        async with services.database.acquire() as conn:
            if query.after and not await audit.audit_row_exists(conn, caller.organization_id, query.after, projects):
                raise unknown_cursor(query.after)
            rows = await audit.list_audit(
                conn, caller.organization_id, wanted, after=query.after, limit=query.limit + 1
            )
            shown = rows[: query.limit]
            if projects is not None:
                insiders = await audit.actors_of_projects(conn, projects, [row.actor_id for row in shown])
                shown = [_for_members(row, insiders) for row in shown]
        return Page(
            data=[_wire(row) for row in shown],
            first_id=shown[0].id if shown else None,
            last_id=shown[-1].id if shown else None,
            has_more=len(rows) > query.limit,
        )

    @get("/verify", opt=needs("audit.read"))
    async def verify_audit_logs(self, services: Services, caller: Caller) -> Verification:
        """Check that no row of the audit log was changed or removed."""
        async with services.database.acquire() as conn:
            verdict = await audit.verify(conn, caller.organization_id)
        broken = verdict.broken
        return Verification(
            intact=broken is None,
            num_rows=verdict.head.sequence,
            head_hash=verdict.head.hash.hex(),
            first_broken=BrokenLink(broken.sequence, broken.id, broken.reason) if broken else None,
        )


def _filter(params: MultiDict[Any]) -> audit.AuditFilter:
    lists = {field: params.getall(param, []) for param, field in LISTS.items()}
    for param, field in LISTS.items():
        if len(lists[field]) > MAX_VALUES:
            raise wrong_value(param, f"expected at most {MAX_VALUES} values")
    since, until = (_time(params, name) for name in TIMES)
    return audit.AuditFilter(**lists, since=since, until=until)


def _time(params: MultiDict[Any], name: str) -> float | None:
    value = params.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal() and len(value) <= 10):
        raise wrong_value(name, "expected Unix seconds")
    return float(value)


def _for_members(row: audit.AuditRow, insiders: frozenset[str]) -> audit.AuditRow:
    """Return an audit record without the parts that members of the changed project may not see.

    Numbers and hashes count events of the whole organization, and would tell how much happens in other projects.
    """
    address = row.address if row.actor_id in insiders else ""
    return msgspec.structs.replace(row, address=address, sequence=0, hash=b"")


def _wire(row: audit.AuditRow) -> dict[str, Any]:
    """Return an event in OpenAI's shape, with its name as a key.

    The fields before and after are as they were recorded.
    """
    who: dict[str, Any] = {"id": row.actor_id, "email": row.actor_email}
    if row.actor_kind == "user":
        actor: dict[str, Any] = {"type": "session", "session": {"user": who, "ip_address": row.address}}
    else:
        actor = {"type": row.actor_kind, row.actor_kind: {"id": row.actor_id, "ip_address": row.address}}
    return {
        "id": row.id,
        "object": "organization.audit_log",
        "type": row.event,
        "effective_at": unix_seconds(row.effective_at),
        "actor": actor,
        "project": None if row.project_id is None else {"id": row.project_id},
        row.event: {"id": row.object_id, "before": _raw(row.before), "after": _raw(row.after)},
        "request_id": row.request_id,
        "sequence": row.sequence or None,
        "hash": row.hash.hex() or None,
    }


def _raw(text: str | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text.encode())
