"""Pauses of projects whose adapters are refused one after the other, longer after each further refusal.

An inspection costs processor time that running streams then lack, so the time that one project's refused adapters may
take is bounded by their number. Knows nothing of HTTP, nor of an inspection's steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.db.adapters.refused_adapters import Refusals, begin_inspection, num_other_inspections, refusals_in_a_row
from gateway.db.organization.projects import lock_project
from gateway.domain.errors import Conflict, UploadsPaused

if TYPE_CHECKING:
    from gateway.db.adapters.adapter_imports import ImportRow
    from gateway.db.pool import Connection

NUM_FREE = 3
"""The refusal in a row with which pauses begin: a person who corrects a mistake need not wait before that."""

FIRST_PAUSE_S, MAX_PAUSE_S = 10.0, 300.0
"""Seconds of the first and of the longest pause: each further refusal in a row doubles the pause. The longest pause is
shorter than the time for which a refusal is remembered."""


def pause_left_s(refusals: Refusals) -> float:
    """Return the seconds until the project's next adapter may be inspected; 0.0 where it may be now."""
    if refusals.num < NUM_FREE:
        return 0.0
    pause_s = min(FIRST_PAUSE_S * 2.0 ** min(refusals.num - NUM_FREE, 32), MAX_PAUSE_S)
    return max(0.0, pause_s - refusals.last_s)


async def check_not_paused(conn: Connection, project_id: str) -> int:
    """Check that a project may have an adapter inspected; return how many of its adapters were refused in a row.

    Call it before anything is read or fetched.

    Raises UploadsPaused: when the project has to wait for its next inspection.
    """
    refusals = await refusals_in_a_row(conn, project_id)
    wait_s = pause_left_s(refusals)
    if wait_s > 0:
        raise UploadsPaused(refusals.num, wait_s)
    return refusals.num


async def begin_if_due(conn: Connection, imported: ImportRow) -> int | None:
    """Begin the inspection of an import, in a transaction; return how many imports in a row the project had refused.

    Return None when other imports of the project are being inspected elsewhere which, if all of them were refused,
    would pause the project: ask again soon.

    Raises UploadsPaused: when so many of the project's imports were refused that it is paused.
    Raises Conflict: when the project is archived or the import is over.
    """
    project_id = imported.project_id
    project = await lock_project(conn, imported.author.organization_id, project_id)
    if project is None or project.archived_at is not None:
        raise Conflict(
            "The project is archived and takes no more adapters.", param="project_id", code="project_archived"
        )
    # Read first: an import that is refused between the two queries is counted twice rather than not at all.
    num_beside = await num_other_inspections(conn, project_id, imported.id)
    num_refused = await check_not_paused(conn, project_id)
    if num_beside and num_refused + num_beside >= NUM_FREE:
        return None
    if not await begin_inspection(conn, project_id, imported.id):
        raise import_over_error()
    return num_refused


def import_over_error() -> Conflict:
    """Return the error for bytes of an import that has ended."""
    return Conflict(
        "This import has ended: it was canceled, or the server stopped working on it. Start a new import.",
        param="import_id",
    )
