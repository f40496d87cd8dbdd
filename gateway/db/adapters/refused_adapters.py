"""The number of a project's adapters that were refused in a row, and the right to begin an inspection.

Exact over all gateways. An adapter is refused by its inspection, by a storage limit that only an inspection can tell,
or by an engine. One that was canceled while it was inspected counts as refused: it cost as much. An adapter that failed
through no fault of its own does not count, nor do files of the watched folder that were not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class Refusals(msgspec.Struct, frozen=True):
    """The adapters of a project that were refused within the last ten minutes, since one was accepted."""

    num: int
    """The number of refused adapters."""
    last_s: float
    """Seconds since the last refusal; 0.0 where there is none."""


_IN_A_ROW = """
    WITH ended AS (
        SELECT imported.updated_at, (imported.state <> 'done' OR version.state = 'rejected') IS TRUE AS is_refused
        FROM adapter_imports imported
        LEFT JOIN adapter_versions version
            ON version.adapter_id = imported.adapter_id AND version.version = imported.version
        WHERE imported.project_id = $1 AND imported.updated_at > clock_timestamp() - interval '10 minutes'
          AND (imported.state = 'done'
               OR (imported.state = 'rejected' AND (imported.source <> 'folder' OR imported.inspection IS NOT NULL))
               OR (imported.state = 'failed' AND imported.reason = 'canceled' AND imported.inspection IS NOT NULL))
    )
    SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - max(updated_at)), 0)::float8
    FROM ended
    WHERE is_refused
      AND updated_at > coalesce((SELECT max(updated_at) FROM ended WHERE NOT is_refused), '-infinity')
"""


async def refusals_in_a_row(conn: Connection, project_id: str) -> Refusals:
    """Return how many adapters of a project were refused in a row, and how long ago the last one was."""
    num, last_s = await conn.fetchrow(_IN_A_ROW, project_id) or (0, 0.0)
    return Refusals(num, max(0.0, last_s))


_OTHERS = """
    SELECT count(*) FROM adapter_imports
    WHERE project_id = $1 AND id <> $2 AND state = 'uploaded' AND inspection = 'begun'
      AND updated_at > clock_timestamp() - interval '20 seconds'
"""


async def num_other_inspections(conn: Connection, project_id: str, import_id: str) -> int:
    """Count the other imports of the project that are being inspected, by gateways that give signs of life."""
    return int(await conn.fetchval(_OTHERS, project_id, import_id))


_BEGIN = """
    UPDATE adapter_imports SET inspection = 'begun', updated_at = clock_timestamp()
    WHERE project_id = $1 AND id = $2 AND state = 'uploaded'
"""


async def begin_inspection(conn: Connection, project_id: str, import_id: str) -> bool:
    """Record that the inspection of an import begins. Return False where the import is over.

    The caller's transaction has locked the project and found that an inspection may begin.
    """
    return await conn.execute(_BEGIN, project_id, import_id) != "UPDATE 0"


_PASSED = "UPDATE adapter_imports SET inspection = 'passed' WHERE project_id = $1 AND id = $2"


async def pass_inspection(conn: Connection, project_id: str, import_id: str) -> None:
    """Record that the inspection accepted an import. A later refusal is by a limit or an engine."""
    await conn.execute(_PASSED, project_id, import_id)


_PUT_OFF = """
    UPDATE adapter_imports
    SET state = $3, num_claims = greatest(num_claims - 1, 0), updated_at = now(),
        wait_until = now() + $4 * interval '1 second'
    WHERE project_id = $1 AND id = $2 AND state IN ('fetching', 'uploaded')
"""


async def put_off_import(conn: Connection, project_id: str, import_id: str, state: str, wait_s: float) -> None:
    """Put an import back into a state before its inspection. state: 'receiving', which keeps all bytes, or 'fetching'.

    'fetching' begins again after wait_s.
    """
    await conn.execute(_PUT_OFF, project_id, import_id, state, wait_s)
