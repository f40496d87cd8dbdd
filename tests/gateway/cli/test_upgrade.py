"""`lorikeet upgrade --check` lists what blocks an upgrade, as text or JSON; its exit code says if anything does."""

from __future__ import annotations

import asyncio
import json

import asyncpg
import pytest

from engine.protocol import protocol_text
from engine.version import VERSION
from gateway.cli import main

BEFORE_0068 = """
    DELETE FROM schema_migrations WHERE name >= '0068' AND name <> 'functions';
    INSERT INTO journals (id, open_requests, version, folder) VALUES ('one', 0, '0.0.9', 'machine:/data/0')
"""
UNREAD = """
    INSERT INTO journals (id, open_requests, heard_at, folder)
    VALUES ('lost', 3, clock_timestamp() - interval '1 hour', 'machine:/data/1')
"""


def execute_sql(dsn: str, sql: str) -> None:
    async def run() -> None:
        conn = await asyncpg.connect(dsn)
        await conn.execute(sql)
        await conn.close()

    asyncio.run(run())


def test_nothing_stands_in_the_way_where_nothing_is_left(dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["upgrade", "--check"], {"DATABASE_URL": dsn}) == 0
    assert capsys.readouterr().out.endswith("The upgrade is done.\n")


def test_steps_that_are_left_are_listed_with_what_to_do(dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    execute_sql(dsn, BEFORE_0068)
    assert main(["upgrade", "--check"], {"DATABASE_URL": dsn}) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"To Lorikeet {VERSION}, protocol {protocol_text()}:\n")
    assert "schema    0 of 1  lorikeet migrate" in text and "schema left: 0068_versions_of_parts" in text
    assert "gateways left: machine:/data/0" in text and text.endswith("Nothing stands in the way of the next step.\n")


def test_what_stands_in_the_way_fails_the_check(dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    execute_sql(dsn, UNREAD)
    assert main(["upgrade", "--check", "--json"], {"DATABASE_URL": dsn}) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["version"], found["protocol"], found["may_go_on"], found["is_done"]) == (
        VERSION,
        protocol_text(),
        False,
        True,
    )
    assert [(each["code"], each["blocks"]) for each in found["findings"]] == [("journal_unread", True)]
    assert [step["name"] for step in found["steps"]] == ["schema", "gateways", "agents", "engines"]
    assert main(["upgrade", "--check"], {"DATABASE_URL": dsn}) == 1
    assert "In the way:\n  3 requests are in the journal lost alone, at machine:/data/1" in capsys.readouterr().out


def test_nothing_is_upgraded_without_the_word_check(dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["upgrade"], {"DATABASE_URL": dsn}) == 2
    assert "--check" in capsys.readouterr().err


def test_a_database_that_is_away_is_its_own_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["upgrade", "--check"], {"DATABASE_URL": "postgresql://lorikeet@127.0.0.1:1/none"}) == 3
    assert "cannot be reached" in capsys.readouterr().err
