"""Aliases from the command line: `set` creates an alias, or moves the one that exists."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.db.pool import Database
from tests.gateway.bases import put_adapter
from tests.gateway.cli.conftest import Cli

OF_ACME = ("--tenant", "acme")


@pytest.fixture
async def adapters(lorikeet: Cli, database: Database) -> None:
    """Create the tenant acme with two versions of the adapter pirate."""
    tenant: Any = await lorikeet.json("tenant", "create", "acme")
    async with database.acquire() as conn:
        for digest in "ab":
            await put_adapter(conn, tenant["id"], "pirate", digest=digest * 64, rank=8, size_bytes=1)


async def test_an_alias_is_set_moved_listed_and_removed(lorikeet: Cli, adapters: None) -> None:
    made = await lorikeet.json("alias", "set", "bot", "pirate@1", *OF_ACME)
    assert await lorikeet("alias", "set", "bot", "pirate@2", *OF_ACME) == (0, "bot is now pirate@2\n", "")
    (listed,) = await lorikeet.json("alias", "list", *OF_ACME)
    assert (listed["id"], listed["adapter"], listed["version"]) == (made["id"], "pirate", 2)
    code, out, _ = await lorikeet("alias", "list", *OF_ACME)
    assert (code, out.split()[:7]) == (0, ["NAME", "ADAPTER", "VERSION", "BASE", "EXPERIMENT", "CREATED", "MOVED"])
    assert await lorikeet("alias", "remove", "bot", *OF_ACME) == (0, "alias bot of acme is removed\n", "")
    assert await lorikeet.json("alias", "list", *OF_ACME) == []


async def test_wrong_arguments_are_refused_in_one_line(lorikeet: Cli, adapters: None) -> None:
    wrong = {
        ("set", "bot", "pirate"): "'pirate' names no version: give an adapter and a number",
        ("set", "bot", "pirate@x"): "'pirate@x' names no version",
        ("set", "bot", "pirate@3"): "Invalid value for 'version'",
        ("set", "bot", "poet@1"): "Invalid value for 'adapter'",
        ("set", "Bot", "pirate@1"): "alias 'Bot' is not valid",
        ("set", "b" * 65, "pirate@1"): "is not valid: use 1 to 64 characters",
        ("set", "..", "pirate@1"): "alias '..' is not valid",
        ("remove", ".."): "alias '..' is not valid",
        ("remove", "bot"): "The project has no alias named 'bot'",
    }
    for arguments, complaint in wrong.items():
        code, out, err = await lorikeet("alias", *arguments, *OF_ACME)
        assert (code, out) == (1, "")
        assert complaint in err and err.count("\n") == 1
