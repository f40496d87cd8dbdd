"""A database's schema, read from PostgreSQL's catalog as text that can be compared.

Partitions of the ledger, which are named after days, and the order of columns are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.db.pool import Connection

Catalog = dict[str, str]
"""The definitions of all objects of a schema, by kind and name."""

_OBJECTS = """
    WITH relations AS (
        SELECT c.* FROM pg_class c
        WHERE c.relnamespace = 'public'::regnamespace AND c.relname !~ '^ledger_\\d{8}'
    )
    SELECT 'table ' || c.relname AS name,
           concat_ws(' ', c.relkind, c.relpersistence, pg_get_partkeydef(c.oid), pg_get_expr(c.relpartbound, c.oid),
                     c.relispartition, c.reloptions::text) AS definition
    FROM relations c WHERE c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
    UNION ALL
    SELECT 'column ' || c.relname || '.' || a.attname,
           concat_ws(' ', format_type(a.atttypid, a.atttypmod), 'NULL' || (NOT a.attnotnull)::text, a.attstorage,
                     a.attidentity, a.attgenerated, pg_get_expr(d.adbin, d.adrelid))
    FROM relations c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'c')
    UNION ALL
    SELECT 'view ' || c.relname, pg_get_viewdef(c.oid) FROM relations c WHERE c.relkind = 'v'
    UNION ALL
    SELECT 'constraint ' || c.relname || '.' || k.conname,
           concat_ws(' ', pg_get_constraintdef(k.oid), k.convalidated)
    FROM relations c JOIN pg_constraint k ON k.conrelid = c.oid WHERE k.contype <> 'n'
    UNION ALL
    SELECT 'index ' || c.relname, pg_get_indexdef(c.oid) FROM relations c WHERE c.relkind IN ('i', 'I')
    UNION ALL
    SELECT 'trigger ' || c.relname || '.' || t.tgname, concat_ws(' ', t.tgenabled, pg_get_triggerdef(t.oid))
    FROM relations c JOIN pg_trigger t ON t.tgrelid = c.oid WHERE NOT t.tgisinternal
    UNION ALL
    SELECT 'function ' || p.oid::regprocedure,
           CASE p.prokind WHEN 'a' THEN (
               SELECT concat_ws(' ', g.aggtransfn::regprocedure, g.aggtranstype::regtype, g.agginitval)
               FROM pg_aggregate g WHERE g.aggfnoid = p.oid
           ) ELSE pg_get_functiondef(p.oid) END
    FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace
    UNION ALL
    SELECT 'type ' || t.typname, t.typtype::text
    FROM pg_type t WHERE t.typnamespace = 'public'::regnamespace AND t.typtype NOT IN ('b', 'c')
"""


async def read_catalog(conn: Connection) -> Catalog:
    return {row["name"]: row["definition"] for row in await conn.fetch(_OBJECTS)}


def differences(mine: Catalog, other: Catalog) -> list[str]:
    """Return a line for each object that only one catalog has, or whose definitions differ."""
    return [
        f"{name}: {mine.get(name)} | {other.get(name)}"
        for name in sorted(mine.keys() | other.keys())
        if mine.get(name) != other.get(name)
    ]
