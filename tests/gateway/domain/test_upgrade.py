"""The report on an upgrade names the obstacles and the remaining steps, for installations described by hand."""

from __future__ import annotations

import pytest

from gateway.db.schema_files import read_migrations
from gateway.domain.upgrade import (
    Change,
    InstallationState,
    Journal,
    Kind,
    Part,
    Pool,
    Software,
    are_neighboring_versions,
    taken_away,
    upgrade_report,
)

OURS = Software("0.2.0", "3.1")
BEFORE = Software("0.1.0", "3.0")


def part(kind: Kind, name: str, software: Software = OURS) -> Part:
    return Part(kind, name, software)


GATEWAYS = [part("gateway", "one"), part("gateway", "two")]
POOL = Pool("tiny", num_wanted=2, num_ready=2, num_draining=0, is_changing=False)


def findings_by_code(installation: InstallationState, ours: Software = OURS) -> dict[str, bool]:
    """Return the code of each finding, and whether it blocks."""
    return {finding.code: finding.blocks for finding in upgrade_report(installation, ours).findings}


def test_nothing_is_left_where_all_is_of_this_version() -> None:
    parts = [*GATEWAYS, part("agent", "host"), part("engine", "a"), part("engine", "b")]
    found = upgrade_report(InstallationState(parts=parts, pools=[POOL]), OURS)
    assert found.may_go_on and found.is_done and found.findings == []
    assert [(step.name, step.num_done, step.num_all) for step in found.steps] == [
        ("schema", 1, 1),
        ("gateways", 2, 2),
        ("agents", 1, 1),
        ("engines", 2, 2),
    ]


def test_parts_of_the_version_before_are_listed_as_steps_and_block_nothing() -> None:
    parts = [part("gateway", "one", BEFORE), part("gateway", "two"), part("agent", "host", BEFORE)]
    found = upgrade_report(InstallationState(changes=[Change("0068_more", [])], parts=parts), OURS)
    assert found.may_go_on and not found.is_done
    assert {step.name: step.left for step in found.steps} == {
        "schema": ["0068_more"],
        "gateways": ["one"],
        "agents": ["host"],
        "engines": [],
    }


@pytest.mark.parametrize(
    ("installation", "code", "blocks"),
    [
        (InstallationState(refusal="the database is newer"), "schema_refused", True),
        (
            InstallationState(changes=[Change("0099_less", ["DROP TABLE limits"])], parts=GATEWAYS),
            "migration_takes_away",
            True,
        ),
        (InstallationState(journals=[Journal("j", 3, "host:/data/journal/0")]), "journal_unread", True),
        (InstallationState(parts=[part("agent", "host", Software("0.4.0", "3.1"))]), "version_far", True),
        (InstallationState(parts=[part("engine", "r", Software("1.2.0", "3.1"))]), "version_far", True),
        (InstallationState(parts=[part("engine", "r", Software("0.1.0", "2.7"))]), "protocol_differs", True),
        (InstallationState(parts=[part("engine", "r", Software(None, None))]), "version_unknown", False),
        (InstallationState(parts=GATEWAYS[:1]), "one_gateway", False),
        (InstallationState(pools=[Pool("tiny", 1, 1, 0, True)]), "pool_changing", True),
        (InstallationState(pools=[Pool("tiny", 2, 1, 0, False)]), "pool_short", True),
        (InstallationState(pools=[Pool("tiny", 1, 1, 1, False)]), "pool_draining", True),
        (InstallationState(drained_hosts=["host"]), "host_drained", False),
        (InstallationState(untended_hosts=["host"]), "host_untended", False),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_each_obstacle_to_an_upgrade_is_reported(installation: InstallationState, code: str, blocks: bool) -> None:
    found = upgrade_report(installation, OURS)
    assert findings_by_code(installation) == {code: blocks}
    assert found.may_go_on is not blocks
    assert all(len(finding.message) < 300 for finding in found.findings)


def test_a_migration_that_removes_something_waits_only_for_gateways() -> None:
    change = Change("0099_less", ["DROP TABLE limits"])
    assert findings_by_code(InstallationState(changes=[change], parts=[part("engine", "r")])) == {}


@pytest.mark.parametrize(
    ("one", "other", "do"),
    [
        ("0.1.0", "0.1.7", True),
        ("0.1.0", "0.2.0", True),
        ("0.2.0", "0.1.0", True),
        ("0.1.0", "0.3.0", False),
        ("0.9.0", "1.0.0", False),
        ("0.2.0rc1", "0.1.0", True),
        ("unknown", "unknown", True),
        ("unknown", "0.1.0", False),
        ("", "0.1.0", False),
    ],
)
def test_which_versions_follow_each_other(one: str, other: str, do: bool) -> None:
    assert are_neighboring_versions(one, other) is do


@pytest.mark.parametrize(
    ("sql", "taken"),
    [
        ("ALTER TABLE a ADD COLUMN b text;", []),
        ("ALTER TABLE a ADD COLUMN b text NOT NULL DEFAULT '';", []),
        ("ALTER TABLE a ADD COLUMN b text DEFAULT '' NOT NULL;", []),
        ("CREATE TABLE a (b text NOT NULL);", []),
        ("-- DROP TABLE a\nCREATE INDEX b ON a (c);", []),
        ("ALTER TABLE a ALTER COLUMN b DROP NOT NULL, DROP CONSTRAINT c;", []),
        ("ALTER TABLE a ADD COLUMN b text NOT NULL;", ["ADD COLUMN b text NOT NULL"]),
        ("DROP TABLE IF EXISTS a;", ["DROP TABLE IF EXISTS a"]),
        ("ALTER TABLE a DROP COLUMN b;", ["DROP COLUMN b"]),
        ("ALTER TABLE a RENAME COLUMN b TO c;", ["RENAME COLUMN b TO c"]),
        ("ALTER TABLE a RENAME TO b;", ["RENAME TO b"]),
        ("ALTER TABLE a ALTER COLUMN b SET NOT NULL;", ["ALTER COLUMN b SET NOT NULL"]),
        ("ALTER TABLE a\n    ALTER COLUMN b TYPE bytea;", ["ALTER COLUMN b TYPE bytea"]),
        ("ALTER TABLE a ADD b integer NOT NULL;", ["ADD b integer NOT NULL"]),
        ("ALTER TABLE a ADD b integer NOT NULL DEFAULT 0, ADD c text;", []),
        ("ALTER TABLE a ADD IF NOT EXISTS b integer NOT NULL", ["ADD IF NOT EXISTS b integer NOT NULL"]),
        ("ALTER TABLE a ADD b bigint GENERATED ALWAYS AS IDENTITY NOT NULL, ADD c bigserial NOT NULL;", []),
        ("ALTER TABLE a ADD b text PRIMARY KEY;", ["ADD b text PRIMARY KEY"]),
        ("ALTER TABLE a DROP b;", ["DROP b"]),
        ('ALTER TABLE ONLY "A" DROP IF EXISTS "b" CASCADE;', ['DROP IF EXISTS "b" CASCADE']),
        ("ALTER TABLE a ALTER b TYPE numeric(10, 2), ADD c text;", ["ALTER b TYPE numeric(10, 2)"]),
        ("ALTER TABLE a ALTER b SET DATA TYPE text;", ["ALTER b SET DATA TYPE text"]),
        ("ALTER TABLE a ALTER b SET NOT NULL;", ["ALTER b SET NOT NULL"]),
        ("ALTER TABLE a ALTER b DROP DEFAULT;", ["ALTER b DROP DEFAULT"]),
        ("ALTER TABLE a ALTER b SET DEFAULT 0, ALTER c DROP NOT NULL;", []),
        ("ALTER TABLE a RENAME b TO c;", ["RENAME b TO c"]),
        ("ALTER TABLE a RENAME CONSTRAINT b TO c; ALTER INDEX d RENAME TO e;", []),
        ("ALTER VIEW a RENAME TO b;", ["RENAME TO b"]),
        ("ALTER TABLE a SET SCHEMA b;", ["SET SCHEMA b"]),
        ("ALTER TABLE a ADD COLUMN b numeric(10,2) NOT NULL;", ["ADD COLUMN b numeric(10,2) NOT NULL"]),
        ("ALTER TABLE a ADD COLUMN b numeric(10,2) NOT NULL DEFAULT 0;", []),
        (
            "ALTER TABLE a ADD b text NOT NULL CHECK (b <> 'DEFAULT' AND (b) <> DEFAULT);",
            ["ADD b text NOT NULL CHECK (b <> 'DEFAULT' AND (b) <> DEFAULT)"],
        ),
        ("ALTER TABLE a ADD b text DEFAULT 'x' CHECK (b IN ('x', 'y;')), ADD c text CHECK (c IS NOT NULL OR d);", []),
        ('DROP TABLE "A";', ['DROP TABLE "A"']),
        ('DROP TABLE public."A", b CASCADE;', ['DROP TABLE public."A", b CASCADE']),
        ("DROP MATERIALIZED VIEW a;", ["DROP MATERIALIZED VIEW a"]),
        ("DROP INDEX a; DROP TRIGGER b ON c;", []),
        ("ALTER TABLE a ADD CONSTRAINT b CHECK (c > 0);", ["ADD CONSTRAINT b CHECK (c > 0)"]),
        ("ALTER TABLE a ADD CHECK (c > 0);", ["ADD CHECK (c > 0)"]),
        ("ALTER TABLE a ADD UNIQUE (b, c);", ["ADD UNIQUE (b, c)"]),
        ("CREATE UNIQUE INDEX a ON b (c);", ["CREATE UNIQUE INDEX a ON b (c)"]),
        (
            'CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS a ON public."B" (c);',
            ['CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS a ON public."B" (c)'],
        ),
        ("CREATE UNIQUE INDEX ON b (c);", ["CREATE UNIQUE INDEX ON b (c)"]),
        ("CREATE UNLOGGED TABLE a (b text); CREATE UNIQUE INDEX ON a (b); ALTER TABLE a ADD CHECK (b <> '');", []),
        ("DROP TABLE a; CREATE TABLE a (b text);", ["DROP TABLE a"]),
        ("/* DROP TABLE a; */ ALTER TABLE a ADD COLUMN b text; -- ALTER TABLE a DROP b", []),
        ("DO $$ BEGIN ALTER TABLE a DROP b; END $$;", ["DROP b"]),
        ("DO $$ BEGIN EXECUTE 'DROP TABLE a'; END $$;", ["DROP TABLE a'"]),
    ],
)
def test_statements_that_remove_something_are_recognized(sql: str, taken: list[str]) -> None:
    assert taken_away(sql) == taken


def test_migrations_after_the_first_release_only_add() -> None:
    """Migrations that remove something were written before the first release, and say so."""
    taking = {script.name for script in read_migrations() if taken_away(script.sql)}
    assert {name for name in taking if name >= "0068"} == set()
    assert "0030_sealed_secrets" in taking
