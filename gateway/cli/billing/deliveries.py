"""`lorikeet delivery` and `lorikeet stripe-customer`: the destinations to which the server delivers exports."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.cli.errors import CommandFailed
from gateway.cli.output import print_json, print_result, print_rows, print_table, utc
from gateway.cli.verbs import add_command, add_group, add_verb, over_admin
from gateway.exports.request import FORMATS_OF, KINDS, Format

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs

SECRET_VARIABLE = "AWS_SECRET_ACCESS_KEY"  # noqa: S105 - the name of a variable


def register(verbs: Verbs) -> None:
    """Add `lorikeet delivery` and `lorikeet stripe-customer` to the command line."""
    actions = add_group(
        verbs, "delivery", "Manage deliveries: exports that the server writes to a folder or a bucket regularly."
    )
    _register_set(actions)
    add_verb(actions, "list", _list, "list deliveries", "List deliveries, oldest first.")
    show = add_verb(
        actions, "show", _show, "show the latest results of a delivery", "Show the latest periods of a delivery."
    )
    remove = add_verb(actions, "remove", _remove, "remove a delivery", "Remove a delivery. Delivered files stay.")
    for action in (show, remove):
        action.add_argument("name", metavar="NAME", help="name of the delivery")
    customer = add_command(
        verbs,
        "stripe-customer",
        _customer,
        "Show, set or remove the Stripe customer of a tenant. Meter events of the tenant name that customer.",
    )
    customer.add_argument("tenant", metavar="TENANT", help="name of the tenant")
    customer.add_argument(
        "customer",
        nargs="?",
        type=_customer_id,
        metavar="CUSTOMER",
        help="id of the Stripe customer, e.g. cus_NciAYcXfLnqBoz",
    )
    customer.add_argument("--remove", action="store_true", help="remove the tenant's Stripe customer")


def _register_set(actions: Verbs) -> None:
    setting = add_verb(
        actions,
        "set",
        _set,
        "create or change a delivery",
        "Deliver an export of each day once it is over, and again where late usage changed it, or of each"
        " month once it is closed. An existing delivery of this name is changed. The secret of a bucket is read from"
        f" {SECRET_VARIABLE}.",
    )
    setting.add_argument("name", metavar="NAME", help="name of the delivery to create or change")
    setting.add_argument("--kind", required=True, choices=KINDS, help="content of the export, as in `lorikeet export`")
    formats: list[Format] = sorted({name for names in FORMATS_OF.values() for name in names})
    setting.add_argument("--format", default="csv", choices=formats, help="format of the files (default: csv)")
    setting.add_argument(
        "--schedule", choices=("daily", "monthly"), default="monthly", help="time between deliveries (default: monthly)"
    )
    setting.add_argument(
        "--from",
        dest="from_period",
        metavar="PERIOD",
        help="first period to deliver (default: the current period; for an existing delivery, no change)",
    )
    where = setting.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--folder",
        metavar="PATH",
        help="folder for the files, below exports/<organization's id> in the server's data folder",
    )
    where.add_argument("--bucket", metavar="NAME", help="bucket for the files, in S3 or in a store with S3's protocol")
    setting.add_argument("--prefix", default="", metavar="PATH", help="prefix of the files' names in the bucket")
    setting.add_argument(
        "--region", default="us-east-1", metavar="REGION", help="region of the bucket (default: us-east-1)"
    )
    setting.add_argument("--endpoint", metavar="URL", help="URL of the store (default: Amazon's)")
    setting.add_argument(
        "--access-key-id",
        default="",
        metavar="ID",
        help="id of the access key; the secret is read from the environment",
    )


def _set(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    body: dict[str, Any] = {
        "name": arguments.name,
        "kind": arguments.kind,
        "format": arguments.format,
        "schedule": arguments.schedule,
        "destination": _destination(arguments, environ),
        "from_period": arguments.from_period,
    }
    with AdminClient.from_environment(environ) as client:
        made = client.post("/deliveries", json=body)
    text = f"delivers {made['kind']} {made['schedule']} from {made['from_period']} to {_destination_text(made)}"
    return print_result(arguments, made, text)


def _destination(arguments: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, Any]:
    if arguments.folder is not None:
        return {"type": "folder", "path": arguments.folder}
    secret = environ.get(SECRET_VARIABLE)
    if not secret:
        raise CommandFailed(
            f"{SECRET_VARIABLE} is not set; set it to the bucket's secret, which must not be on the command line"
        )
    destination = {
        "type": "s3",
        "bucket": arguments.bucket,
        "prefix": arguments.prefix,
        "region": arguments.region,
        "access_key_id": arguments.access_key_id,
        "secret_access_key": secret,
    }
    return destination | ({"endpoint": arguments.endpoint} if arguments.endpoint else {})


@over_admin
def _list(arguments: argparse.Namespace, client: AdminClient) -> int:
    rows = client.get_all("/deliveries")
    return print_rows(
        arguments,
        rows,
        ("NAME", "KIND", "FORMAT", "SCHEDULE", "FROM", "TO"),
        [
            (row["name"], row["kind"], row["format"], row["schedule"], row["from_period"], _destination_text(row))
            for row in rows
        ],
    )


@over_admin
def _show(arguments: argparse.Namespace, client: AdminClient) -> int:
    found = client.get(f"/deliveries/{_find(client, arguments.name)}")
    if arguments.json:
        print_json(found)
        return 0
    delivery = found["delivery"]
    print(f"{delivery['kind']} as {delivery['format']}, {delivery['schedule']}, to {_destination_text(delivery)}")
    print_table(
        ("PERIOD", "ATTEMPTS", "DELIVERED", "NEXT ATTEMPT", "LAST ERROR"),
        [
            (run["period"], run["attempts"], utc(run["delivered_at"]), utc(run["due_at"]), run["last_error"])
            for run in found["runs"]
        ],
    )
    return 0


@over_admin
def _remove(arguments: argparse.Namespace, client: AdminClient) -> int:
    gone = client.delete(f"/deliveries/{_find(client, arguments.name)}")
    return print_result(arguments, gone, f"removed {arguments.name}")


@over_admin
def _customer(arguments: argparse.Namespace, client: AdminClient) -> int:
    path = f"{client.tenant_path(arguments.tenant)}/stripe_customer"
    if arguments.remove:
        found = client.delete(path)
    elif arguments.customer is not None:
        found = client.post(path, json={"customer_id": arguments.customer})
    else:
        found = client.get(path)
    return print_result(arguments, found, found["customer_id"] or f"{arguments.tenant} has no customer at Stripe")


def _customer_id(text: str) -> str:
    if not re.fullmatch(r"cus_[A-Za-z0-9_]{1,64}", text):
        raise argparse.ArgumentTypeError(f"must be a customer's id, which begins with cus_, not {text!r}")
    return text


def _find(client: AdminClient, name: str) -> str:
    """Return the id of the delivery of this name. Raises CommandFailed: when there is none."""
    for row in client.get_all("/deliveries"):
        if row["name"] == name:
            return str(row["id"])
    raise CommandFailed(f"there is no delivery named '{name}'; `lorikeet delivery list` lists all deliveries")


def _destination_text(delivery: Mapping[str, Any]) -> str:
    location, destination = delivery["location"], delivery["destination"]
    if destination["type"] == "folder":
        return f"{location} in the data folder"
    return f"{location} at {destination['endpoint']}" if "endpoint" in destination else str(location)
