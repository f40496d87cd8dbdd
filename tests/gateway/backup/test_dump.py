"""The database's programs get a connection string without its password, and their errors show no password."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.postgres.dump import DumpFailed, dump, without_options, without_password


@pytest.mark.parametrize(
    ("dsn", "shown", "password"),
    [
        ("postgresql://u:p%40ss@db:5433/x", "postgresql://u@db:5433/x", "p@ss"),
        ("postgresql://u:pw@/x?host=/run/pg", "postgresql://u@/x?host=%2Frun%2Fpg", "pw"),
        ("postgresql://u@db/x?password=pw&sslmode=require", "postgresql://u@db/x?sslmode=require", "pw"),
        ("postgresql://u:pw@a:1,b:2/x", "postgresql://u@a:1,b:2/x", "pw"),
        ("postgresql://db/x", "postgresql://db/x", None),
    ],
)
def test_a_password_is_taken_out_of_the_connection_string(dsn: str, shown: str, password: str | None) -> None:
    assert without_password(dsn) == (shown, password)


def test_errors_of_pg_dump_are_shown_without_the_password(tmp_path: Path) -> None:
    with pytest.raises(DumpFailed) as error:
        dump("postgresql://u:very-secret@127.0.0.1:1/x", "0-0-1", tmp_path / "dump")
    assert "pg_dump failed" in str(error.value) and "very-secret" not in str(error.value)


def test_options_of_columns_that_a_server_keeps_for_itself_are_not_restored() -> None:
    """PostgreSQL 15.20 writes a version into the options of each column, and other versions refuse that option."""
    option = b"ALTER TABLE ONLY public.ledger ALTER COLUMN kind SET (pg_attver=27963376);\n"
    other = b"ALTER TABLE ONLY public.ledger ALTER COLUMN kind SET (n_distinct=5);\n"
    rows = [b"COPY public.notes (text) FROM stdin;\n", option, b"\\.\n"]
    assert [*without_options([option, other, *rows, option, b"COMMIT;\n"])] == [other, *rows, b"COMMIT;\n"]


def test_a_setting_of_newer_servers_is_made_where_the_server_knows_it() -> None:
    """PostgreSQL 15 and 16 have no `transaction_timeout`, but scripts by `pg_dump` of version 18 always set it."""
    setting = b"SET transaction_timeout = 0;\n"
    row = [b"COPY public.notes (text) FROM stdin;\n", setting, b"\\.\n"]
    first, *others = without_options([setting, *row])
    assert first.startswith(b"SELECT set_config(name, '0', false) FROM pg_catalog.pg_settings WHERE")
    assert others == row
