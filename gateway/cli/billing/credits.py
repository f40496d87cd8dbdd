"""`lorikeet credit` and `lorikeet adjustment`: a tenant's prepaid amounts, and an operator's corrections by hand."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.billing.money import parse_amount, parse_instant
from gateway.cli.output import print_json, print_result, print_rows, print_table, utc
from gateway.cli.verbs import add_group, add_verb, over_admin
from gateway.domain.billing.money import decimal_text

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet credit` and `lorikeet adjustment` to the command line."""
    actions = add_group(verbs, "credit", "Manage the prepaid credits of a tenant.")
    grant = add_verb(
        actions,
        "grant",
        _grant,
        "grant credit",
        "Grant credit to a tenant. Usage of the tenant consumes the oldest credit first. A grant "
        "cannot be revoked, but an adjustment that charges the same amount undoes a grant.",
    )
    grant.add_argument("--tenant", required=True, metavar="NAME", help="name of the tenant that gets the credit")
    grant.add_argument("--amount", required=True, type=parse_amount, metavar="AMOUNT", help="amount in the currency")
    grant.add_argument("--reason", required=True, metavar="TEXT", help="reason for the credit")
    grant.add_argument(
        "--expires", type=parse_instant, metavar="TIME", help="time at which the unused credit expires (default: never)"
    )
    listing = add_verb(actions, "list", _list, "list credits", "List the credits and the balance of a tenant.")
    listing.add_argument("--tenant", required=True, metavar="NAME", help="name of the tenant")
    mode = add_verb(
        actions,
        "mode",
        _set_billing_mode,
        "make a tenant prepaid or postpaid",
        "Make a tenant prepaid or postpaid. Requests of a prepaid tenant are refused when the "
        "balance is used up; a postpaid tenant gets an invoice.",
    )
    mode.add_argument("--tenant", required=True, metavar="NAME", help="name of the tenant")
    mode.add_argument("mode", choices=("prepaid", "postpaid"), help="new billing mode of the tenant")
    _register_adjustments(verbs)


def _register_adjustments(verbs: Verbs) -> None:
    actions = add_group(
        verbs, "adjustment", "Manage adjustments: charges and refunds that an operator adds to the ledger."
    )
    add = add_verb(
        actions,
        "add",
        _adjust,
        "charge or refund a tenant",
        "Charge or refund a tenant in the current billing period. An adjustment cannot be "
        "deleted, but an adjustment in the other direction undoes the first.",
    )
    add.add_argument("--tenant", required=True, metavar="NAME", help="name of the tenant")
    how_much = add.add_mutually_exclusive_group(required=True)
    how_much.add_argument("--charge", type=parse_amount, metavar="AMOUNT", help="amount to charge in addition")
    how_much.add_argument("--refund", type=parse_amount, metavar="AMOUNT", help="amount to refund")
    add.add_argument("--reason", required=True, metavar="TEXT", help="reason for the adjustment")
    add.add_argument(
        "--corrects-period", metavar="MONTH", help="closed month that the adjustment corrects, e.g. 2026-10"
    )
    add.add_argument("--corrects-request", metavar="ID", help="id of the request that the adjustment corrects")
    listing = add_verb(actions, "list", _list_adjustments, "list adjustments", "List a tenant's adjustments.")
    listing.add_argument("--tenant", required=True, metavar="NAME", help="name of the tenant")


@over_admin
def _grant(arguments: argparse.Namespace, client: AdminClient) -> int:
    body = {"amount_nanos": arguments.amount, "reason": arguments.reason, "expires_at": arguments.expires}
    granted = client.post(f"{client.tenant_path(arguments.tenant)}/credits", json=body)
    text = f"credit {granted['id']}: {decimal_text(granted['amount_nanos'])} for {arguments.tenant}"
    return print_result(arguments, granted, text)


@over_admin
def _list(arguments: argparse.Namespace, client: AdminClient) -> int:
    path = client.tenant_path(arguments.tenant)
    credits, billing = client.get_all(f"{path}/credits"), client.get(f"{path}/billing")
    if arguments.json:
        print_json({"credits": credits, "billing": billing})
        return 0
    print_table(
        ("ID", "AMOUNT", "DRAWN", "LAPSED", "EXPIRES", "REASON"),
        [
            (
                each["id"],
                decimal_text(each["amount_nanos"]),
                decimal_text(each["drawn_nanos"]),
                "" if each["lapsed_nanos"] is None else decimal_text(each["lapsed_nanos"]),
                utc(each["expires_at"]),
                each["reason"],
            )
            for each in credits
        ],
    )
    print(f"{billing['mode']}, balance {decimal_text(billing['balance_nanos'])} {billing['currency']}")
    return 0


@over_admin
def _set_billing_mode(arguments: argparse.Namespace, client: AdminClient) -> int:
    billing = client.post(f"{client.tenant_path(arguments.tenant)}/billing", json={"mode": arguments.mode})
    balance = f"{decimal_text(billing['balance_nanos'])} {billing['currency']}"
    return print_result(arguments, billing, f"tenant {arguments.tenant} is {billing['mode']}, balance {balance}")


def _adjust(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    direction = "charge" if arguments.refund is None else "refund"
    body = {
        "direction": direction,
        "amount_nanos": arguments.charge if arguments.refund is None else arguments.refund,
        "reason": arguments.reason,
        "corrects_period": arguments.corrects_period,
        "corrects_request_id": arguments.corrects_request,
    }
    with AdminClient.from_environment(environ) as client:
        made = client.post(f"{client.tenant_path(arguments.tenant)}/adjustments", json=body)
    text = f"adjustment {made['id']}: {decimal_text(made['cost_nanos'])}, billed in {made['period']}"
    return print_result(arguments, made, text)


@over_admin
def _list_adjustments(arguments: argparse.Namespace, client: AdminClient) -> int:
    rows = client.get_all(f"{client.tenant_path(arguments.tenant)}/adjustments")
    return print_rows(
        arguments,
        rows,
        ("ID", "AMOUNT", "BILLED IN", "CORRECTS", "MADE", "REASON"),
        [
            (
                each["id"],
                decimal_text(each["cost_nanos"]),
                each["period"],
                each["corrects_request_id"] or each["corrects_period"],
                utc(each["created_at"]),
                each["reason"],
            )
            for each in rows
        ],
    )
