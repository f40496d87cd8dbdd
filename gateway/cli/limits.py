"""`lorikeet limit`: what a tenant of the running server may use, or all tenants together."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gateway.cli.output import add_json_flag, print_json, print_table, utc

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs

UNITS = {
    "requests": "requests",
    "tokens": "tokens",
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cost": "cost_nanos",
    "concurrency": "concurrency",
    "storage": "storage_bytes",
}
"""As the command line calls them, and as the API does."""

NANOS = 10**9
MAX_NUMBER = 2**62
"""What the server takes."""


def register(verbs: Verbs) -> None:
    limit = verbs.add_parser(
        "limit", help="set, list and remove limits", description="Limits of a tenant or the organization."
    )
    actions = limit.add_subparsers(metavar="ACTION", required=True)
    setting = actions.add_parser(
        "set", help="set a limit", description="Set a limit; one of the same kind gets the new maximum."
    )
    _add_identity(setting)
    setting.add_argument("--max", required=True, type=_number, metavar="N", help="the most; of cost in the currency")
    setting.add_argument(
        "--alert",
        type=int,
        nargs="*",
        metavar="PERCENT",
        help="shares of the maximum at which webhooks are called (default: 80 100 where there is a window)",
    )
    add_json_flag(setting)
    setting.set_defaults(run=_set)
    listing = actions.add_parser(
        "list", help="list limits", description="List limits with what is used, reserved and free."
    )
    _add_owner(listing)
    add_json_flag(listing)
    listing.set_defaults(run=_list)
    remove = actions.add_parser(
        "remove", help="remove a limit", description="Remove a limit; one that is not there is left so."
    )
    _add_identity(remove)
    add_json_flag(remove)
    remove.set_defaults(run=_remove)


def _add_owner(parser: argparse.ArgumentParser) -> None:
    owner = parser.add_mutually_exclusive_group(required=True)
    owner.add_argument("--tenant", metavar="NAME", help="the tenant whose limits are meant")
    owner.add_argument("--organization", action="store_true", help="limits of all tenants together are meant")


def _add_identity(parser: argparse.ArgumentParser) -> None:
    _add_owner(parser)
    parser.add_argument("--unit", required=True, choices=UNITS, help="what is limited")
    parser.add_argument(
        "--window",
        choices=("minute", "day", "month", "none"),
        default="none",
        help="how long it is counted; none for concurrency, storage, and the size of one request (default: none)",
    )
    parser.add_argument("--model", metavar="MODEL", help="only requests to this model")
    parser.add_argument("--key", metavar="KEY_ID", help="only requests with this API key")
    parser.add_argument("--soft", action="store_true", help="alert only, refuse nothing")


def _set(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient
    from gateway.cli.errors import CommandFailed

    wanted = _identity(arguments)
    most = arguments.max * NANOS if arguments.unit == "cost" else arguments.max
    if most != int(most):
        raise CommandFailed(f"--max: expected a whole number of {arguments.unit}")
    with AdminClient.of(environ) as client:
        body = {**wanted, "max": int(most)}
        if arguments.alert is not None:
            body["alert_percents"] = arguments.alert
        limit = client.post(_path(client, arguments), json=body)
    if arguments.json:
        print_json(_shown(limit))
    else:
        print(f"limit {limit['id']}: {_in_words(limit)}")
    return 0


def _list(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        limits = [_shown(each) for each in client.get_all(_path(client, arguments))]
    if arguments.json:
        print_json(limits)
        return 0
    columns = ("unit", "window", "model", "api_key_id", "max", "used", "reserved", "free")
    print_table(
        ("ID", "UNIT", "WINDOW", "MODEL", "KEY", "MAX", "USED", "RESERVED", "FREE", "KIND", "WINDOW ENDS"),
        [
            (
                each["id"],
                *(each[column] for column in columns),
                "hard" if each["hard"] else "soft",
                utc(each["window_end"]),
            )
            for each in limits
        ],
    )
    return 0


def _remove(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    wanted = _identity(arguments)
    with AdminClient.of(environ) as client:
        path = _path(client, arguments)
        found = [
            limit["id"]
            for limit in client.get_all(path)
            if all(limit[field] == wanted.get(field) for field in ("unit", "window", "hard", "model", "api_key_id"))
        ]
        for limit_id in found:
            client.delete(f"{path}/{quote(limit_id, safe='')}")
    if arguments.json:
        print_json({"removed": found})
    else:
        print(f"limit {found[0]} is removed" if found else "there is no such limit")
    return 0


def _path(client: AdminClient, arguments: argparse.Namespace) -> str:
    """Of the list of limits that is meant. Raises CommandFailed where there is no such tenant."""
    return "/limits" if arguments.organization else f"{client.tenant_path(arguments.tenant)}/limits"


def _identity(arguments: argparse.Namespace) -> dict[str, Any]:
    """What tells a limit from others, as the API names it."""
    identity: dict[str, Any] = {
        "unit": UNITS[arguments.unit],
        "window": arguments.window,
        "hard": not arguments.soft,
    }
    if arguments.model is not None:
        identity["model"] = arguments.model
    if arguments.key is not None:
        identity["api_key_id"] = arguments.key
    return identity


def _shown(limit: dict[str, Any]) -> dict[str, Any]:
    """With the tenant's view of units: cost in the currency, as a decimal."""
    if limit["unit"] != "cost_nanos":
        return limit
    amounts = {field: limit[field] / NANOS for field in ("max", "used", "reserved", "free")}
    return {**limit, "unit": "cost", **amounts}


def _in_words(limit: dict[str, Any]) -> str:
    shown = _shown(limit)
    per = "" if shown["window"] == "none" else f" per {shown['window']}"
    kind = "at most" if shown["hard"] else "an alert at"
    return f"{kind} {shown['max']} {shown['unit']}{per}"


def _number(text: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal(-1)
    if not number.is_finite() or not 0 <= number <= MAX_NUMBER:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to {MAX_NUMBER}, not {text!r}")
    return number
