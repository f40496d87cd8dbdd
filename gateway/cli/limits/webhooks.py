"""`lorikeet webhook`: URLs that the server calls about limits, experiments and background responses."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.cli.output import print_json, print_result, print_rows, utc
from gateway.cli.path_parts import id_part
from gateway.cli.verbs import add_group, add_verb, over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs


DAY_S = 86400


def register(verbs: Verbs) -> None:
    """Add `lorikeet webhook` to the command line."""
    actions = add_group(
        verbs, "webhook", "Manage webhooks: URLs that are called for limits, experiments and background responses."
    )
    add = add_verb(
        actions,
        "add",
        _add,
        "add a webhook",
        "Add a webhook and print the secret that signs the webhook's messages. The secret is never shown again.",
    )
    add.add_argument("url", metavar="URL", help="http or https URL that receives the messages")
    add.add_argument(
        "--event",
        action="append",
        dest="events",
        metavar="EVENT",
        help="event that the webhook is called for, such as response.completed; may be given several times. "
        "Default: limit.threshold_reached and experiment.paused",
    )
    add_verb(actions, "list", _list, "list webhooks", "List webhooks with the state of the latest deliveries.")
    rotate = add_verb(
        actions,
        "rotate",
        _rotate,
        "give a webhook a new secret",
        "Give a webhook a new secret and print the secret. For the grace period each message is signed "
        "with the former secret as well, so that the receiver can be changed meanwhile.",
    )
    rotate.add_argument("webhook_id", metavar="WEBHOOK_ID", help="id of the webhook, as `webhook list` shows it")
    rotate.add_argument(
        "--grace", type=int, default=DAY_S, metavar="SECONDS", help="grace period in seconds (default: a day)"
    )
    remove = add_verb(
        actions, "remove", _remove, "remove a webhook", "Remove a webhook and all messages that wait to be sent."
    )
    remove.add_argument("webhook_id", metavar="WEBHOOK_ID", help="id of the webhook, as `webhook list` shows it")


@over_admin
def _add(arguments: argparse.Namespace, client: AdminClient) -> int:
    webhook = client.post("/webhooks", json={"url": arguments.url, "events": arguments.events})
    return _print_secret(arguments, webhook)


def _rotate(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    path = f"/webhooks/{id_part(arguments.webhook_id)}/rotate"
    with AdminClient.from_environment(environ) as client:
        rotated = client.post(path, json={"grace_seconds": arguments.grace})
    return _print_secret(arguments, rotated)


def _print_secret(arguments: argparse.Namespace, webhook: Mapping[str, Any]) -> int:
    if arguments.json:
        print_json(webhook)
    else:
        print(webhook["secret"])
        print(f"lorikeet: webhook {webhook['id']}; its messages are signed with this secret", file=sys.stderr)
    return 0


@over_admin
def _list(arguments: argparse.Namespace, client: AdminClient) -> int:
    webhooks = client.get_all("/webhooks")
    rows = [
        (
            w["id"],
            w["url"],
            ",".join(w["events"]),
            utc(w["last_delivered_at"]),
            utc(w["last_failed_at"]),
            w["last_error"],
        )
        for w in webhooks
    ]
    return print_rows(arguments, webhooks, ("ID", "URL", "EVENTS", "LAST DELIVERED", "LAST FAILED", "LAST ERROR"), rows)


@over_admin
def _remove(arguments: argparse.Namespace, client: AdminClient) -> int:
    removed = client.delete(f"/webhooks/{id_part(arguments.webhook_id)}")
    return print_result(arguments, {"id": removed["id"], "removed": True}, f"webhook {removed['id']} is removed")
