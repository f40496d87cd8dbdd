"""`lorikeet reconcile`: a comparison of the ledger with the engines' counts, and the journals of dead gateways."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.errors import EXIT_FAILED, EXIT_OK, WrongUsage
from gateway.cli.output import print_json, print_result, print_table, utc
from gateway.cli.path_parts import id_part
from gateway.cli.verbs import add_command, over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet reconcile` to the command line."""
    reconcile = add_command(
        verbs,
        "reconcile",
        _run,
        "Compare the tokens that engines counted with the tokens that the ledger recorded. The "
        "difference is 0 once all ended requests are in the ledger. Exits with 1 if usage was "
        "lost: dropped by an engine, or lost with the data folder of a gateway.",
    )
    reconcile.add_argument(
        "--write-off",
        metavar="JOURNAL_ID",
        help="id of a lost gateway's journal to stop waiting for; recorded in the audit log",
    )
    reconcile.add_argument("--reason", metavar="TEXT", help="reason for writing off the journal, for the audit log")


def _run(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    if (arguments.write_off is None) != (arguments.reason is None):
        raise WrongUsage("--write-off and --reason go together")
    return _reconcile(arguments, environ) if arguments.write_off is None else _write_off(arguments, environ)


def _write_off(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    path = f"/reconciliation/lost_journals/{id_part(arguments.write_off)}/write_off"
    with AdminClient.from_environment(environ) as client:
        written_off = client.post(path, json={"reason": arguments.reason})
    return print_result(arguments, written_off, f"wrote off {written_off['open_requests']} requests")


@over_admin
def _reconcile(arguments: argparse.Namespace, client: AdminClient) -> int:
    found = client.get("/reconciliation")
    engines, lost = found["engines"], found["lost_journals"]
    if arguments.json:
        print_json(found)
    else:
        print_table(
            ("MODEL", "ENGINE", "ENDED", "IN LEDGER", "DIFFERENCE", "DROPPED"),
            [
                (
                    engine["model"],
                    engine["engine_id"],
                    engine["ended_prompt_tokens"] + engine["ended_completion_tokens"],
                    engine["ledger_prompt_tokens"] + engine["ledger_completion_tokens"],
                    engine["difference_tokens"],
                    engine["num_dropped"],
                )
                for engine in engines
            ],
        )
        for journal in lost:
            print(
                f"lost: {journal['open_requests']} requests of a gateway last heard {utc(journal['heard_at'])}, "
                f"journal {journal['id']}"
            )
    return EXIT_FAILED if lost or any(engine["num_dropped"] for engine in engines) else EXIT_OK
