"""`lorikeet upgrade --check`: what stands in the way of an upgrade to this version, and which steps are left.

Reads the database alone, so it needs no gateway, and the new version can report before anything is changed.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.cli.errors import EXIT_FAILED, EXIT_OK, CommandFailed, ServerUnreachable, WrongUsage
from gateway.cli.output import print_json, print_table
from gateway.cli.server.processes import owner_and_gateway_dsns
from gateway.cli.verbs import add_command
from gateway.settings import load_settings

if TYPE_CHECKING:
    from gateway.cli.output import Verbs
    from gateway.domain.upgrade import Report

HOW = {
    "schema": "lorikeet migrate, with the new version",
    "gateways": "replace one after the other",
    "agents": "replace, letting their engines run",
    "engines": "lorikeet replica restart ID --wait, one after the other",
}
"""Instructions for each step of an upgrade, in the order of the steps."""


def register(verbs: Verbs) -> None:
    """Add `lorikeet upgrade` to the command line."""
    upgrade = add_command(
        verbs,
        "upgrade",
        _upgrade,
        "Show what stands in the way of an upgrade to the version of this command, and which steps "
        "are left: schema, gateways, agents, engines. Run it with the new version before the first step, and before "
        "each next one. Changes nothing. Exits with 1 while something stands in the way.",
    )
    upgrade.add_argument("--check", action="store_true", help="look, and change nothing (required)")


def _upgrade(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    if not arguments.check:
        raise WrongUsage("give --check: this command takes no step itself; deploy/UPGRADE.md says how to take each")
    from gateway.db.pool import UNAVAILABLE, UNUSABLE, in_words

    dsn = owner_and_gateway_dsns(load_settings(environ)).owner
    try:
        found = asyncio.run(_read_report(dsn))
    except UNUSABLE as error:
        raise CommandFailed(in_words(error)) from None
    except UNAVAILABLE as error:
        raise ServerUnreachable(in_words(error)) from None
    if arguments.json:
        print_json(_wire(found))
    else:
        _print(found)
    return EXIT_OK if found.may_go_on else EXIT_FAILED


async def _read_report(dsn: str) -> Report:
    from engine.protocol import protocol_text
    from engine.version import VERSION
    from gateway.db.installed_versions import read_installation
    from gateway.db.pool import Database
    from gateway.domain.upgrade import Software, upgrade_report

    async with await Database.connect(dsn, max_size=1) as database, database.acquire() as conn:
        return upgrade_report(await read_installation(conn), Software(VERSION, protocol_text()))


def _wire(found: Report) -> dict[str, Any]:
    import msgspec

    facts: dict[str, Any] = msgspec.to_builtins(found)
    software = facts.pop("software")
    return {**software, "may_go_on": found.may_go_on, "is_done": found.is_done, **facts}


def _print(found: Report) -> None:
    print(f"To Lorikeet {found.software.version}, protocol {found.software.protocol}:\n")
    rows = [
        (step.name, f"{step.num_done} of {step.num_all}", HOW[step.name] if step.left else "") for step in found.steps
    ]
    print_table(("STEP", "DONE", "NEXT"), rows)
    for step in found.steps:
        if step.left:
            print(f"\n{step.name} left: {', '.join(step.left)}")
    for blocks, title in ((True, "In the way:"), (False, "To know:")):
        messages = [finding.message for finding in found.findings if finding.blocks == blocks]
        if messages:
            print("\n".join(["", title, *(f"  {message}" for message in messages)]))
    if found.may_go_on:
        print("\nNothing stands in the way of the next step." if not found.is_done else "\nThe upgrade is done.")
