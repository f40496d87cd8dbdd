"""The document of a route as a caller of the admin API may write it: checks that need more than the document."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from gateway.admin.routing.wire import UpdateRoute
from gateway.admin.services import AdminServices
from gateway.db.organization import projects
from gateway.domain.routing.policy.checks import read_document, refusal, unusable
from gateway.domain.routing.policy.document import Document, nodes_of, payers_of
from gateway.domain.tenancy.actor import Actor
from gateway.domain.tenancy.permissions import has_permission
from gateway.support.patterns import pattern_fault

if TYPE_CHECKING:
    from gateway.db.pool import Connection


async def checked_document(services: AdminServices, wanted: UpdateRoute, caller: Actor, project_id: str) -> str:
    """Return the document of a route as it is kept.

    Raises InvalidRequest: with the path of the node at fault, also where the project may not use a target, or where the
    caller may not let another project pay.
    """
    document = read_document(msgspec.json.encode(wanted.document))
    _check_patterns(document)
    wrong = await services.planner.unusable(project_id, caller.organization_id, document)
    if wrong is not None:
        raise unusable(*wrong)
    async with services.database.acquire() as conn:
        await check_payers(conn, caller, document)
    return msgspec.json.encode(document).decode()


def _check_patterns(document: Document) -> None:
    for path, node, _ in nodes_of(document):
        pattern = None if node.cascade is None else node.cascade.accept.regex
        if pattern is not None and (why := pattern_fault(pattern)) is not None:
            raise refusal(f"{path}.cascade.accept.regex", why)


async def check_payers(conn: Connection, caller: Actor, document: Document) -> None:
    """Check that a caller who lets projects pay for copies may write routes of each of them.

    Raises InvalidRequest: by the path of the node, where the caller may not, or where there is no such project.
    """
    for payer, path in payers_of(document).items():
        if has_permission(caller, "routes.write", payer):
            row = await projects.get_project(conn, caller.organization_id, payer)
            if row is not None and row.archived_at is None:
                continue
        raise refusal(path, "there is no such project whose routes you may write")
