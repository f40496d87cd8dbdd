"""Each table has an entry in `tables.py`, and whatever an entry refers to exists."""

from __future__ import annotations

import re
import typing
from inspect import isfunction

import pytest

from gateway.admin.limits.limits import SetLimit
from gateway.db.pool import Database
from gateway.postgres.dump import LEFT_OUT
from tests.gateway.admin.access.foreign import ForeignIds
from tests.gateway.admin.test_access import MEANT
from tests.gateway.db.tables import TABLES, Bound, Coverage, ForeignId, Quota, Reason, Removal, Route

_TABLES = """
    SELECT relname FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'f', 'm') AND NOT relispartition
"""


async def test_every_table_of_the_schema_is_classified(database: Database) -> None:
    async with database.acquire() as conn:
        tables = {row["relname"] for row in await conn.fetch(_TABLES)}
    assert tables - TABLES.keys() == set(), "say in tests/gateway/db/tables.py what covers them"
    assert TABLES.keys() - tables == set(), "these are gone"


@pytest.mark.parametrize(("table", "coverage"), TABLES.items(), ids=TABLES)
def test_whatever_an_entry_refers_to_exists(table: str, coverage: Coverage) -> None:
    for entry in (coverage.access, coverage.foreign, coverage.bound, coverage.removal):
        match entry:
            case Route(about):
                assert about in MEANT, "the matrix of roles knows this path"
            case ForeignId(field):
                assert field in ForeignIds.__struct_fields__, "the test of foreign ids has such an id"
            case Bound(limit):
                assert limit > 0
            case Quota(unit):
                assert unit in _units(), "an operator can set such a limit"
            case Removal(sql):
                assert re.search(rf"\b(DELETE FROM|UPDATE) {table}\b", sql), "the statement is about the table"
            case Reason(why):
                assert len(why.split()) > 2
            case _:
                assert isfunction(entry) and entry.__name__.startswith("test_")


def test_backups_leave_out_what_the_classification_says() -> None:
    left_out = {f"public.{table}" for table, coverage in TABLES.items() if not coverage.in_backup}
    assert left_out == set(LEFT_OUT)


def _units() -> tuple[str, ...]:
    hints = typing.get_type_hints(SetLimit)
    return typing.get_args(hints["unit"])
