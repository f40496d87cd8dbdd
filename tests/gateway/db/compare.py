"""Compares the rows of two databases table by table, whatever their size, by sums of hashes that the server computes.

By hand, with a copy that was made before a conversion and the database after it:

    python -m tests.gateway.db.compare postgresql://.../before postgresql://.../after

The columns that both databases have are compared; partitions count as their table. Exits with 1 where rows differ in a
table outside of MAY_DIFFER.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import asyncpg
import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAY_DIFFER = frozenset(
    {
        "schema_migrations",
        # The conversion adds what the queues hold to the sums; made anew or dropped with them.
        "rollup_queue",
        "traffic_queue",
        "usage_rollups",
        "period_sums",
        "traffic_rollups",
        "traffic_times",
        "usage_events",
        "bases",
    }
)

_COLUMNS = """
    SELECT c.relname AS table, array_agg(a.attname ORDER BY a.attname) AS columns
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    GROUP BY c.relname
"""


class Rows(msgspec.Struct, frozen=True):
    """The number of a table's rows, and two sums over hashes of all rows."""

    num_rows: int
    hash_sums: tuple[int, int]


class TableComparison(msgspec.Struct, frozen=True):
    """The comparison of one table; a side is None where a database does not have the table."""

    table: str
    before: Rows | None
    after: Rows | None

    @property
    def is_equal(self) -> bool:
        return self.before == self.after


async def compare(before: Connection, after: Connection) -> list[TableComparison]:
    """Return the comparison of every table that either database has, in the order of names."""
    columns = [{row["table"]: set(row["columns"]) for row in await conn.fetch(_COLUMNS)} for conn in (before, after)]
    found = []
    for table in sorted(columns[0].keys() | columns[1].keys()):
        common = (
            columns[0].get(table, set()) & columns[1].get(table, set()) or columns[0].get(table) or columns[1][table]
        )
        rows = [
            await _rows(conn, table, sorted(common)) if table in known else None
            for conn, known in zip((before, after), columns, strict=True)
        ]
        found.append(TableComparison(table, *rows))
    return found


async def _rows(conn: Connection, table: str, columns: list[str]) -> Rows:
    values = ", ".join(f't."{column}"' for column in columns)
    row = await conn.fetchrow(
        f"SELECT count(*), coalesce(sum(hashtextextended(r.content, 0)), 0)::text,"
        f" coalesce(sum(hashtextextended(r.content, 1)), 0)::text"
        f' FROM (SELECT ROW({values})::text AS content FROM "{table}" t) r'
    )
    assert row is not None
    return Rows(row[0], (int(row[1]), int(row[2])))


async def _main(before_dsn: str, after_dsn: str) -> int:
    settings = {"timezone": "UTC"}
    before = await asyncpg.connect(before_dsn, server_settings=settings)
    after = await asyncpg.connect(after_dsn, server_settings=settings)
    failed = False
    for each in await compare(before, after):
        counts = [str(rows.num_rows) if rows else "-" for rows in (each.before, each.after)]
        verdict = "equal" if each.is_equal else "differs" if each.table not in MAY_DIFFER else "may differ"
        failed |= verdict == "differs"
        print(f"{each.table:28} {counts[0]:>10} {counts[1]:>10}  {verdict}")
    await before.close()
    await after.close()
    return int(failed)


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(*sys.argv[1:])))
