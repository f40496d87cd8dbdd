"""Checks of a route's document that need the database or the rights of the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from adapters.ref import check_adapter_name
from gateway.admin.routing.wire import UpdateRoute
from gateway.admin.services import AdminServices
from gateway.db.organization import projects
from gateway.domain.routing.policy.checks import policy_error, read_document, unusable_target_error
from gateway.domain.routing.policy.document import Document, copy_targets_of, nodes_of, payers_of, targets_of
from gateway.domain.tenancy.actor import Actor
from gateway.domain.tenancy.permissions import has_permission
from gateway.support.patterns import pattern_fault

if TYPE_CHECKING:
    from gateway.db.pool import Connection


async def checked_document(services: AdminServices, wanted: UpdateRoute, caller: Actor, project_id: str) -> str:
    """Return the checked document of a route in the form in which it is stored.

    Raises InvalidRequest: when a node is wrong, the project may not use a target, or the caller may not let another
    project pay; the error has the path of the node.
    """
    document = read_document(msgspec.json.encode(wanted.document))
    await _check_patterns(services, document, project_id)
    wrong = await services.planner.unusable(project_id, caller.organization_id, document)
    if wrong is not None:
        raise unusable_target_error(*wrong)
    async with services.database.acquire() as conn:
        await check_payers(conn, caller, document)
    return msgspec.json.encode(document).decode()


async def checked_shared_document(services: AdminServices, wanted: UpdateRoute, caller: Actor) -> str:
    """Return the checked document of a route for all projects of an organization, as it is stored.

    Raises InvalidRequest: when a node is wrong, or a target is neither a base model that all projects of the
    organization may use nor an adapter's name under one: what else a name stands for differs by project. The error has
    the path of the node.
    """
    document = read_document(msgspec.json.encode(wanted.document))
    await _check_patterns(services, document, caller.organization_id)
    visible = services.bases.visible("", caller.organization_id)
    for target, path in (*targets_of(document).items(), *copy_targets_of(document).items()):
        base, colon, adapter = target.partition(":")
        if base not in visible:
            raise policy_error(path, f"'{base}' is no base model that all projects of the organization may use")
        if colon and not _is_adapter_name(adapter):
            raise policy_error(path, f"'{adapter}' is no name of an adapter; a route for all projects names no version")
    async with services.database.acquire() as conn:
        await check_payers(conn, caller, document)
    return msgspec.json.encode(document).decode()


def _is_adapter_name(name: str) -> bool:
    try:
        check_adapter_name(name, "adapter name")
    except ValueError:
        return False
    return True


async def _check_patterns(services: AdminServices, document: Document, owner_id: str) -> None:
    """Check the regular expressions of a document in a thread, since each may take a tenth of a second to compile.

    owner_id: the id of the project or organization whose turn is taken there.
    """
    patterns = {
        f"{path}.cascade.accept.regex": node.cascade.accept.regex
        for path, node, _ in nodes_of(document)
        if node.cascade is not None and node.cascade.accept.regex is not None
    }
    if patterns and (fault := await services.pattern_threads.run(owner_id, _first_fault, patterns)) is not None:
        raise policy_error(*fault)


def _first_fault(patterns: dict[str, str]) -> tuple[str, str] | None:
    """Return the path of the first faulty pattern and its fault; None where all are good. patterns: by their paths."""
    faults = ((path, pattern_fault(pattern)) for path, pattern in patterns.items())
    return next(((path, fault) for path, fault in faults if fault is not None), None)


async def check_payers(conn: Connection, caller: Actor, document: Document) -> None:
    """Check that a caller who lets projects pay for copies may write routes of each of them.

    Raises InvalidRequest: when the caller may not, or there is no such project; the error has the path of the node.
    """
    for payer, path in payers_of(document).items():
        if has_permission(caller, "routes.write", payer):
            row = await projects.get_project(conn, caller.organization_id, payer)
            if row is not None and row.archived_at is None:
                continue
        raise policy_error(path, "there is no such project whose routes you may write")
