"""`lorikeet price`: the prices of tokens. A change of prices is a new version of the whole book."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.cli.billing.money import nanos_of, parse_instant, parse_price
from gateway.cli.errors import CommandFailed, WrongUsage
from gateway.cli.output import print_json, print_result, print_table, utc
from gateway.cli.path_parts import name_part
from gateway.cli.pools.finding import warn_of_unknown_model
from gateway.cli.verbs import add_group, add_verb, over_admin
from gateway.domain.billing.book import ANY, TIERS
from gateway.domain.billing.money import decimal_text

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs

IDENTITY = ("model", "adapter_class", "service_tier")
FLAGS = ("--model", "--adapter-class", "--tier")
PERCENT = (0, 100 * 10**9)
NANOS_PER_BASIS_POINT = 10**7


def register(verbs: Verbs) -> None:
    """Add `lorikeet price` to the command line."""
    actions = add_group(verbs, "price", "Manage the price book: the prices of tokens.")
    setting = add_verb(
        actions,
        "set",
        _set,
        "set prices",
        "Create the next version of the price book: the newest version with the given changes. "
        "Amounts are in the currency, per million tokens.",
    )
    setting.add_argument(
        "--model", metavar="ID", help="id of a model, or of a base model for all adapters on that base (default: any)"
    )
    setting.add_argument(
        "--adapter-class",
        type=_price_class,
        metavar="CLASS",
        help="price class of the adapter: none for the base model itself, default, or your own class (default: any)",
    )
    setting.add_argument("--tier", metavar="TIER", help=f"service tier: {', '.join(TIERS)} (default: any)")
    setting.add_argument("--input", type=parse_price, metavar="AMOUNT", help="price of prompt tokens")
    setting.add_argument(
        "--cached-input",
        type=parse_price,
        metavar="AMOUNT",
        help="price of cached prompt tokens (default: the price of --input)",
    )
    setting.add_argument("--output", type=parse_price, metavar="AMOUNT", help="price of completion tokens")
    setting.add_argument(
        "--remove", action="store_true", help="remove the entry from the price book instead; '*' stands for any"
    )
    setting.add_argument(
        "--discount",
        action="append",
        default=[],
        metavar="TENANT=PERCENT",
        help="discount of a tenant, e.g. acme=12.5; 0 ends a discount; repeat the flag for more",
    )
    setting.add_argument(
        "--currency", metavar="CODE", help="currency of the first version of the price book, e.g. eur (default: usd)"
    )
    setting.add_argument(
        "--effective",
        type=parse_instant,
        metavar="TIME",
        help="time from which the new prices apply, in UTC (default: now)",
    )
    classing = add_verb(
        actions,
        "class",
        _class,
        "set the price class of an adapter",
        "Set the price class of an adapter. Entries of the price book name adapters by their price class.",
    )
    classing.add_argument("--tenant", required=True, metavar="NAME", help="name of the tenant that owns the adapter")
    classing.add_argument("--adapter", required=True, metavar="NAME", help="name of the adapter")
    classing.add_argument(
        "price_class", type=_price_class, metavar="CLASS", help="price class: default, or your own class"
    )
    withdraw = add_verb(
        actions,
        "withdraw",
        _withdraw,
        "withdraw a future version of the price book",
        "Withdraw a version of the price book that is not in force yet.",
    )
    withdraw.add_argument(
        "version", type=int, metavar="VERSION", help="number of the version, as in `lorikeet price list`"
    )
    add_verb(actions, "list", _list, "list prices", "List every version of the price book, newest first.")


def _set(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    identity = _identity(arguments)
    percents = [_discount(text) for text in arguments.discount]
    with AdminClient.from_environment(environ) as client:
        newest = client.get("/prices", limit=1)["data"]
        book: dict[str, Any] = newest[0] if newest else {"currency": "usd", "entries": [], "discounts": []}
        entries, removed = _entries(arguments, identity, book["entries"])
        body = {
            "currency": arguments.currency or book["currency"],
            "entries": entries,
            "discounts": _discounts(percents, client, book["discounts"]),
            "effective_at": arguments.effective,
        }
        version = client.post("/prices", json=body)
        if not arguments.remove:
            warn_of_unknown_model(identity["model"], client)
    is_ahead = version["effective_at"] > time.time()
    text = f"prices are version {version['version']}, {'which will be ' if is_ahead else ''}in force from "
    return print_result(arguments, version, f"{removed}{text}{utc(version['effective_at'])}")


def _identity(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the model, adapter class and tier of the price entry that the flags name.

    Raises WrongUsage: when flags contradict each other, or nothing is to be changed.
    """
    given = (arguments.model, arguments.adapter_class, arguments.tier)
    amounts = (arguments.input, arguments.cached_input, arguments.output)
    if arguments.remove:
        if amounts != (None, None, None):
            raise WrongUsage("--remove removes an entry and cannot be combined with amounts")
        if given == (None, None, None):
            raise WrongUsage(
                f"--remove: name the entry with {', '.join(FLAGS)}; --model '*' names the entry for all models"
            )
    elif amounts == (None, None, None):
        if not arguments.discount:
            raise WrongUsage("give --input and --output, --remove or --discount")
        if given != (None, None, None):
            raise WrongUsage(
                "--discount applies to all usage of a tenant: prices of an entry need --input and --output"
            )
    elif arguments.input is None or arguments.output is None:
        raise WrongUsage("--input and --output go together; one of them may be 0")
    elif arguments.tier not in (*TIERS, ANY, None):
        raise WrongUsage(f"--tier: expected {', '.join(TIERS)} or '*', not {arguments.tier!r}")
    elif (arguments.cached_input or 0) > arguments.input:
        raise WrongUsage("--cached-input: the price must not be higher than the price of --input")
    return dict(zip(IDENTITY, (ANY if each is None else each for each in given), strict=True))


def _entries(
    arguments: argparse.Namespace, identity: Mapping[str, str], known: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], str]:
    """Return the entries of the next version of the prices, and words about an entry that was removed.

    Raises CommandFailed: when the entry to remove is not in the price book.
    """
    if arguments.input is None and not arguments.remove:
        return known, ""
    gone = [entry for entry in known if all(entry[field] == identity[field] for field in IDENTITY)]
    others = [entry for entry in known if entry not in gone]
    if arguments.remove:
        if not gone:
            raise CommandFailed("the price book has no such entry; `lorikeet price list` shows all entries")
        prices = f"input {decimal_text(gone[0]['input_nanos_per_million'])}, "
        prices += f"output {decimal_text(gone[0]['output_nanos_per_million'])}"
        words = (f"{flag} {gone[0][field]}" for flag, field in zip(FLAGS, IDENTITY, strict=True))
        return others, f"removed {' '.join(words)} ({prices}); "
    amounts = {
        "input_nanos_per_million": arguments.input,
        "cached_input_nanos_per_million": arguments.cached_input,
        "output_nanos_per_million": arguments.output,
    }
    return [*others, {**identity, **amounts}], ""


def _discount(text: str) -> tuple[str, int]:
    """Return (tenant, basis points). Raises WrongUsage: when the text is no discount."""
    tenant, _, percent = text.rpartition("=")
    try:
        basis_points, rest = divmod(nanos_of(percent, PERCENT), NANOS_PER_BASIS_POINT)
    except argparse.ArgumentTypeError:
        basis_points, rest = 0, 1
    if not tenant or rest:
        raise WrongUsage(
            "--discount: expected TENANT=PERCENT such as acme=12.5, with a percentage from 0 to 100 of at most two "
            f"decimals, not {text!r}"
        )
    return tenant, basis_points


def _discounts(wanted: list[tuple[str, int]], client: AdminClient, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
    discounts = {each["project_id"]: each["basis_points"] for each in known}
    for tenant, basis_points in wanted:
        discounts[client.tenant_path(tenant).removeprefix("/projects/")] = basis_points
    return [{"project_id": project, "basis_points": points} for project, points in discounts.items() if points]


def _price_class(text: str) -> str:
    if not re.fullmatch(r"\*|[A-Za-z0-9._-]{1,64}", text):
        raise argparse.ArgumentTypeError(
            f"must be up to 64 letters, digits, dots, hyphens and underscores, not {text!r}"
        )
    return text


@over_admin
def _withdraw(arguments: argparse.Namespace, client: AdminClient) -> int:
    found = [each["id"] for each in client.get_all("/prices") if each["version"] == arguments.version]
    if not found:
        raise CommandFailed(f"there is no version {arguments.version}; `lorikeet price list` lists all versions")
    gone = client.delete(f"/prices/{found[0]}")
    return print_result(arguments, gone, f"version {arguments.version} is withdrawn")


@over_admin
def _class(arguments: argparse.Namespace, client: AdminClient) -> int:
    path = f"{client.tenant_path(arguments.tenant)}/adapters/{name_part(arguments.adapter)}/price_class"
    made = client.post(path, json={"price_class": arguments.price_class})
    return print_result(arguments, made, f"adapter {made['adapter']} is of the class {made['price_class']}")


@over_admin
def _list(arguments: argparse.Namespace, client: AdminClient) -> int:
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
