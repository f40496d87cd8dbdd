"""`lorikeet limit`: the limits of a tenant of the running server, or of all tenants together."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from gateway.cli.errors import WrongUsage
from gateway.cli.output import print_json, print_rows, utc
from gateway.cli.path_parts import id_part
from gateway.cli.pools.finding import warn_of_unknown_model
from gateway.cli.verbs import add_group, add_verb, over_admin
from gateway.domain.billing.book import ANY
from gateway.domain.billing.money import NANOS, decimal_text, to_number

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
    "batch_tokens": "enqueued_batch_tokens",
}
"""Units by their names on the command line, each with its name in the API."""

AMOUNTS = ("max", "used", "reserved", "free")
MAX_NUMBER = 2**62
"""The largest number that the server takes."""


def register(verbs: Verbs) -> None:
    """Add `lorikeet limit` to the command line."""
    actions = add_group(verbs, "limit", "Manage the limits of a tenant or of the organization.")
    setting = add_verb(
        actions, "set", _set, "set a limit", "Set a limit. An existing limit of the same kind gets the new maximum."
    )
    _add_identity(setting)
    setting.add_argument(
        "--max",
        required=True,
        type=_number,
        metavar="N",
        help="maximum of the unit; for cost, an amount of the currency",
    )
    setting.add_argument(
        "--alert",
        type=int,
        nargs="*",
        metavar="PERCENT",
        help="percentages of the maximum at which webhooks are called (default: 80 100 for a limit with a window)",
    )
    listing = add_verb(actions, "list", _list, "list limits", "List limits with the used, reserved and free amounts.")
    _add_owner(listing)
    remove = add_verb(
        actions, "remove", _remove, "remove a limit", "Remove a limit. Succeeds too if there is no such limit."
    )
    _add_identity(remove)


def _add_owner(parser: argparse.ArgumentParser) -> None:
    owner = parser.add_mutually_exclusive_group(required=True)
    owner.add_argument("--tenant", metavar="NAME", help="name of the tenant to which the limit applies")
    owner.add_argument("--organization", action="store_true", help="the limit applies to all tenants together")


def _add_identity(parser: argparse.ArgumentParser) -> None:
    _add_owner(parser)
    parser.add_argument("--unit", required=True, choices=UNITS, help="unit that the limit counts")
    parser.add_argument(
        "--window",
        choices=("minute", "day", "month", "none"),
        default="none",
        help="time over which the unit is counted; none for concurrency, storage, and the size of one "
        "request (default: none)",
    )
    parser.add_argument("--model", metavar="MODEL", help="count only requests to this model")
    parser.add_argument("--key", metavar="KEY_ID", help="count only requests with this API key")
    parser.add_argument("--soft", action="store_true", help="call webhooks only, and refuse no request")


def _set(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    wanted, most = _identity(arguments), _parse_max(arguments)
    with AdminClient.from_environment(environ) as client:
        body = {**wanted, "max": most}
        if arguments.alert is not None:
            body["alert_percents"] = arguments.alert
        limit = client.post(_path(client, arguments), json=body)
        warn_of_unknown_model(arguments.model or ANY, client)
    if arguments.json:
        print_json(_limit_fields(limit))
    else:
        print(f"limit {limit['id']}: {_limit_text(limit)}")
    return 0


@over_admin
def _list(arguments: argparse.Namespace, client: AdminClient) -> int:
    limits = client.get_all(_path(client, arguments))
    columns = ("unit", "window", "model", "api_key_id", "max", "used", "reserved", "free")
    return print_rows(
        arguments,
        [_limit_fields(each) for each in limits],
        ("ID", "UNIT", "WINDOW", "MODEL", "KEY", "MAX", "USED", "RESERVED", "FREE", "KIND", "WINDOW ENDS"),
        [
            (
                each["id"],
                *(_cell(each, column) for column in columns),
                "hard" if each["hard"] else "soft",
                utc(each["window_end"]),
            )
            for each in limits
        ],
    )


def _parse_max(arguments: argparse.Namespace) -> int:
    """Return the maximum in the API's units: nanos of a dollar for a cost, else whole numbers.

    Raises WrongUsage: when the number is too large or too fine.
    """
    scale, number = NANOS if arguments.unit == "cost" else 1, arguments.max
    if not 0 <= number * scale <= MAX_NUMBER:
        raise WrongUsage(f"--max: expected a number from 0 to {MAX_NUMBER // scale} of {arguments.unit}")
    if number * scale != int(number * scale):
        kind = "at most nine decimals" if scale > 1 else "a whole number"
        raise WrongUsage(f"--max: expected {kind} of {arguments.unit}")
    return int(number * scale)


def _remove(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    wanted = _identity(arguments)
    with AdminClient.from_environment(environ) as client:
        path = _path(client, arguments)
        found = [
            limit["id"]
            for limit in client.get_all(path)
            if all(limit[field] == wanted.get(field) for field in ("unit", "window", "hard", "model", "api_key_id"))
        ]
        for limit_id in found:
            client.delete(f"{path}/{id_part(limit_id)}")
    if arguments.json:
        print_json({"removed": found})
    else:
        print(f"limit {found[0]} is removed" if found else "there is no such limit")
    return 0


def _path(client: AdminClient, arguments: argparse.Namespace) -> str:
    """Return the path of the limits of the tenant that the arguments name, or of the organization.

    Raises CommandFailed: when there is no such tenant.
    """
    return "/limits" if arguments.organization else f"{client.tenant_path(arguments.tenant)}/limits"


def _identity(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields that identify a limit, as the API names them."""
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


def _limit_fields(limit: dict[str, Any]) -> dict[str, Any]:
    """Return a limit with the tenant's view of units: cost in the currency, as a decimal."""
    if limit["unit"] != "cost_nanos":
        return limit
    return {**limit, "unit": "cost"} | {field: to_number(limit[field]) for field in AMOUNTS}


def _cell(limit: dict[str, Any], column: str) -> object:
    """Return a field of a limit as a table shows it. Amounts of money are exact there; JSON has the nearest number."""
    if limit["unit"] == "cost_nanos" and column in AMOUNTS:
        return decimal_text(limit[column])
    return "cost" if limit[column] == "cost_nanos" else limit[column]


def _limit_text(limit: dict[str, Any]) -> str:
    per = "" if limit["window"] == "none" else f" per {limit['window']}"
    kind = "at most" if limit["hard"] else "an alert at"
    return f"{kind} {_cell(limit, 'max')} {_cell(limit, 'unit')}{per}"


def _number(text: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal(-1)
    if not number.is_finite() or not 0 <= number <= MAX_NUMBER:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to {MAX_NUMBER}, not {text!r}")
    return number
