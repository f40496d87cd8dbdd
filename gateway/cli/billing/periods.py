"""`lorikeet period` and `lorikeet invoice`: months that are closed once, and the amount of each tenant in them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.cli.billing.stripe import warn_of_unbilled
from gateway.cli.output import (
    STANDARD_OUTPUT,
    add_out_flags,
    check_out,
    print_json,
    print_result,
    print_rows,
    print_table,
    utc,
    write_out,
)
from gateway.cli.path_parts import id_part
from gateway.cli.verbs import add_group, add_verb, over_admin
from gateway.domain.billing.money import decimal_text

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet period` and `lorikeet invoice` to the command line."""
    actions = add_group(verbs, "period", "Manage billing periods, which are months.")
    add_verb(actions, "list", _list, "list periods", "List months, newest first.")
    close = add_verb(
        actions,
        "close",
        _close,
        "close a period",
        "Close a month that has ended: credits are consumed, and the month's usage never changes again.",
    )
    close.add_argument("period", metavar="MONTH", help="month, e.g. 2026-10")
    actions = add_group(verbs, "invoice", "Manage the invoices of tenants.")
    issue = add_verb(
        actions,
        "issue",
        _issue,
        "issue a period's invoices",
        "Issue the invoices of a closed month for all tenants, and give each invoice a number.",
    )
    issue.add_argument("--period", required=True, metavar="MONTH", help="month, e.g. 2026-10")
    show = add_verb(
        actions,
        "show",
        _show,
        "show invoices",
        "Show the invoices of a month: issued invoices, or drafts for a month that is not issued.",
    )
    show.add_argument("--period", required=True, metavar="MONTH", help="month, e.g. 2026-10")
    show.add_argument("--tenant", metavar="NAME", help="show only this tenant's invoice (required for html)")
    show.add_argument(
        "--format", choices=("text", "json", "html"), default="text", help="output format (default: text)"
    )
    add_out_flags(show, "file for the html (default: -)")


@over_admin
def _list(arguments: argparse.Namespace, client: AdminClient) -> int:
    periods = client.get_all("/periods")
    return print_rows(
        arguments,
        periods,
        ("PERIOD", "STATE", "REQUESTS", "COST", "CLOSED", "INVOICED"),
        [
            (
                each["id"],
                each["state"],
                each["num_requests"],
                f"{decimal_text(each['cost_nanos'])} {each['currency']}",
                utc(each["closed_at"]),
                utc(each["invoiced_at"]),
            )
            for each in periods
        ],
    )


@over_admin
def _close(arguments: argparse.Namespace, client: AdminClient) -> int:
    closed = client.post(f"/periods/{id_part(arguments.period)}/close")
    if names := [project["name"] for project in closed["projects_without_customer"]]:
        warn_of_unbilled(names, closed["id"])
    text = f"{closed['id']} is {closed['state']}: {decimal_text(closed['cost_nanos'])} {closed['currency']}"
    return print_result(arguments, closed, text)


@over_admin
def _issue(arguments: argparse.Namespace, client: AdminClient) -> int:
    issued = client.post(f"/periods/{id_part(arguments.period)}/invoices")["data"]
    if arguments.json:
        print_json(issued)
    else:
        _print_invoices(issued)
    return 0


def _show(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient
    from gateway.cli.errors import CommandFailed

    period = id_part(arguments.period)
    with AdminClient.from_environment(environ) as client:
        if arguments.format == "html":
            if arguments.tenant is None:
                raise CommandFailed("--format html shows one invoice: name the tenant with --tenant")
            if arguments.out is not None:
                check_out(arguments, arguments.out)
            page = client.get_text(f"{client.tenant_path(arguments.tenant)}/invoices/{period}", format="html")
            write_out(arguments.out or STANDARD_OUTPUT, [page.encode()])
            return 0
        if arguments.tenant is None:
            invoices = client.get(f"/periods/{period}/invoices")["data"]
        else:
            invoices = [client.get(f"{client.tenant_path(arguments.tenant)}/invoices/{period}")]
    if arguments.json or arguments.format == "json":
        print_json(invoices if arguments.tenant is None else invoices[0])
    else:
        _print_invoices(invoices)
    return 0


def _print_invoices(invoices: list[dict[str, Any]]) -> None:
    print_table(
        ("NUMBER", "TENANT", "USAGE", "ADJUSTMENTS", "CREDIT", "DUE"),
        [
            (
                each["number"] or "draft",
                each["project"]["name"],
                decimal_text(each["usage_nanos"]),
                decimal_text(each["adjustments_nanos"]),
                decimal_text(each["credit_nanos"]),
                f"{decimal_text(each['due_nanos'])} {each['currency']}",
            )
            for each in invoices
        ],
    )
