"""`lorikeet reconcile`: whether the ledger has all that engines counted, and what was lost with dead gateways."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.errors import EXIT_FAILED, EXIT_OK
from gateway.cli.output import add_json_flag, print_json, print_table, utc

if TYPE_CHECKING:
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    reconcile = verbs.add_parser(
        "reconcile",
        help="compare the ledger with the engines' counts",
        description="Compare what engines counted with what the ledger took of them; 0 tokens differ once all that has "
        "ended is in the ledger. Exits 1 where usage was lost: dropped by an engine, or with a gateway's folder.",
    )
    add_json_flag(reconcile)
    reconcile.set_defaults(run=_reconcile)


def _reconcile(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
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
            print(f"lost: {journal['open_requests']} requests of a gateway last heard {utc(journal['heard_at'])}")
    return EXIT_FAILED if lost or any(engine["num_dropped"] for engine in engines) else EXIT_OK
