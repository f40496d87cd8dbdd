"""The files that the schema consists of, and the order in which they are applied.

schema/      the tables as they are now, one file per domain; only an empty database is built from them
functions/   all functions, triggers and views; applied whole, so that the truth about each is its one file
migrations/  numbered changes, for databases that were built before a change of the tables

Knows nothing about databases.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import msgspec

ROOM = Path(__file__).parent
TABLES = (
    "organization",
    "adapters",
    "pools",
    "limits",
    "ledger",
    "billing",
    "content",
    "files",
    "batches",
    "traffic",
    "experiments",
    "routing",
)
FUNCTIONS = (
    "changes",
    "organization",
    "adapters",
    "pools",
    "limits",
    "billing",
    "ledger",
    "batches",
    "traffic",
    "experiments",
    "routing",
    "roles",
)
MIGRATIONS = ROOM / "migrations"

BASELINE = "0000_schema"
"""The name of the first state that numbered migrations change: a converted database has it (`conversion`)."""


class MigrationRefused(RuntimeError):
    """The error for a database that contradicts the files of this code; nothing was changed."""


class NewerDatabase(MigrationRefused):
    """The error for a database with migrations of a later version."""


class Script(msgspec.Struct, frozen=True):
    """SQL statements that are applied as they are."""

    name: str
    sql: str
    sha256: str
    """The digest of the file, by which a database remembers it."""


def read_tables() -> str:
    """Return the statements that create all tables."""
    return "\n".join((ROOM / "schema" / f"{name}.sql").read_text() for name in TABLES)


def read_functions() -> Script:
    """Read all files of functions as one script."""
    return _script("functions", b"\n".join((ROOM / "functions" / f"{name}.sql").read_bytes() for name in FUNCTIONS))


def read_conversion() -> Script:
    """Read the script that takes the last of the old numbered schemas to `BASELINE`."""
    return _script(BASELINE, (ROOM / "conversion.sql").read_bytes())


def read_migrations(folder: Path = MIGRATIONS) -> list[Script]:
    """Read the files `NNNN_name.sql` of a folder in order, from 0001 on.

    A number may be left out, for it cannot be filled once a later one was applied.

    Raises MigrationRefused: for other names and for numbers that repeat.
    """
    migrations: list[Script] = []
    for path in sorted(folder.glob("*.sql")):
        if not re.fullmatch(r"\d{4}_[a-z0-9_]+", path.stem) or path.stem.startswith(BASELINE[:4]):
            raise MigrationRefused(f"{path.name}: expected a file named NNNN_<name>.sql, from 0001 on")
        if migrations and migrations[-1].name[:4] == path.stem[:4]:
            raise MigrationRefused(f"{path.name}: its number is that of {migrations[-1].name}.sql")
        migrations.append(_script(path.stem, path.read_bytes()))
    return migrations


def schema_names() -> tuple[str, ...]:
    """Return the names that a database with the schema of this code remembers, in order."""
    return (BASELINE, *(migration.name for migration in read_migrations()))


def _script(name: str, content: bytes) -> Script:
    return Script(name, content.decode(), hashlib.sha256(content).hexdigest())
