"""`lorikeet price`: what tokens cost. A change of prices is a new version of the whole book."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gateway.billing.money import decimal_text
from gateway.cli.errors import CommandFailed
from gateway.cli.money import instant, nanos
from gateway.cli.output import add_json_flag, print_json, print_result, print_table, utc

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs

IDENTITY = ("model", "adapter_class", "service_tier")


def register(verbs: Verbs) -> None:
    price = verbs.add_parser("price", help="set and list prices", description="What tokens cost.")
    actions = price.add_subparsers(metavar="ACTION", required=True)
    setting = actions.add_parser(
        "set",
        help="set prices",
        description="Make the next version of the price book: the newest one with these changes. Amounts are of the "
        "currency per million tokens.",
    )
    setting.add_argument("--model", default="*", metavar="ID", help="a model or its base (default: any)")
    setting.add_argument(
        "--adapter-class", default="*", metavar="CLASS", help="none: the base itself; default; your own (default: any)"
    )
    setting.add_argument("--tier", default="*", metavar="TIER", help="default, flex, priority, batch (default: any)")
    setting.add_argument("--input", type=nanos, metavar="AMOUNT", help="of prompt tokens")
    setting.add_argument("--cached-input", type=nanos, metavar="AMOUNT", help="of cached ones (default: as --input)")
    setting.add_argument("--output", type=nanos, metavar="AMOUNT", help="of completion tokens")
    setting.add_argument("--remove", action="store_true", help="take this entry out of the book instead")
    setting.add_argument(
        "--discount", action="append", default=[], metavar="TENANT=PERCENT", help="e.g. acme=12.5; 0 ends it; repeats"
    )
    setting.add_argument("--currency", metavar="CODE", help="of the first version, e.g. eur (default: usd)")
    setting.add_argument("--effective", type=instant, metavar="TIME", help="from when on, in UTC (default: now)")
    add_json_flag(setting)
    setting.set_defaults(run=_set)
    classing = actions.add_parser(
        "class", help="class an adapter", description="Say what entries of the price book call an adapter."
    )
    classing.add_argument("--tenant", required=True, metavar="NAME", help="whose adapter it is")
    classing.add_argument("--adapter", required=True, metavar="NAME", help="the adapter")
    classing.add_argument("price_class", metavar="CLASS", help="default, or one of your own")
    add_json_flag(classing)
    classing.set_defaults(run=_class)
    listing = actions.add_parser("list", help="list prices", description="List every version, newest first.")
    add_json_flag(listing)
    listing.set_defaults(run=_list)


def _set(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        newest = client.get("/prices", limit=1)["data"]
        book: dict[str, Any] = newest[0] if newest else {"currency": "usd", "entries": [], "discounts": []}
        body = {
            "currency": arguments.currency or book["currency"],
            "entries": _entries(arguments, book["entries"]),
            "discounts": _discounts(arguments, client, book["discounts"]),
            "effective_at": arguments.effective,
        }
        version = client.post("/prices", json=body)
    text = f"prices are version {version['version']}, in force from {utc(version['effective_at'])}"
    return print_result(arguments, version, text)


def _entries(arguments: argparse.Namespace, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
    identity = dict(zip(IDENTITY, (arguments.model, arguments.adapter_class, arguments.tier), strict=True))
    others = [entry for entry in known if any(entry[field] != identity[field] for field in IDENTITY)]
    amounts = (arguments.input, arguments.cached_input, arguments.output)
    if arguments.remove:
        if len(others) == len(known):
            raise CommandFailed("there is no such entry; `lorikeet price list` shows those there are")
        return others
    if amounts == (None, None, None):
        if not arguments.discount:
            raise CommandFailed("give --input and --output, --remove or --discount")
        return known
    if arguments.input is None or arguments.output is None:
        raise CommandFailed("--input and --output go together; one of them may be 0")
    prices = {
        "input_nanos_per_million": arguments.input,
        "cached_input_nanos_per_million": arguments.cached_input,
        "output_nanos_per_million": arguments.output,
    }
    return [*others, identity | prices]


def _discounts(arguments: argparse.Namespace, client: AdminClient, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
    discounts = {each["project_id"]: each["basis_points"] for each in known}
    for text in arguments.discount:
        tenant, _, percent = text.rpartition("=")
        try:
            basis_points, rest = divmod(nanos(percent) * 100, 10**9)
        except argparse.ArgumentTypeError:
            basis_points, rest = 0, 1
        if not tenant or rest or basis_points > 10_000:
            raise CommandFailed(f"--discount: expected TENANT=PERCENT such as acme=12.5, not {text!r}")
        discounts[client.tenant_path(tenant).removeprefix("/projects/")] = basis_points
    return [{"project_id": project, "basis_points": points} for project, points in discounts.items() if points]


def _class(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        path = f"{client.tenant_path(arguments.tenant)}/adapters/{quote(arguments.adapter, safe='')}/price_class"
        made = client.post(path, json={"price_class": arguments.price_class})
    return print_result(arguments, made, f"adapter {made['adapter']} is of the class {made['price_class']}")


def _list(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        versions = client.get_all("/prices")
        names = {project["id"]: project["name"] for project in client.get_all("/projects", include_archived="true")}
    if arguments.json:
        print_json(versions)
        return 0
    header = ("VERSION", "FROM", "MODEL", "CLASS", "TIER", "INPUT", "CACHED", "OUTPUT")
    rows: list[tuple[object, ...]] = []
    for version in versions:
        head = (version["version"], utc(version["effective_at"]))
        rows += [
            (
                *head,
                *(entry[field] for field in IDENTITY),
                decimal_text(entry["input_nanos_per_million"]),
                decimal_text(entry["cached_input_nanos_per_million"]),
                f"{decimal_text(entry['output_nanos_per_million'])} {version['currency']}",
            )
            for entry in version["entries"]
        ]
        rows += [
            (*head, f"{names.get(each['project_id'], each['project_id'])}: less {each['basis_points'] / 100:g}%")
            + ("",) * 5
            for each in version["discounts"]
        ]
    print_table(header, rows)
    return 0
