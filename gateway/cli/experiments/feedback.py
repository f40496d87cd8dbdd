"""`lorikeet feedback`: one vote about a reply or a unit, sent with a tenant's key as any client sends it."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from gateway.cli.output import print_result
from gateway.cli.verbs import add_group, add_verb
from gateway.domain.experiments.feedback.votes import Source

if TYPE_CHECKING:
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet feedback` to the command line."""
    actions = add_group(
        verbs, "feedback", "Send feedback about replies and end users, of which the metrics of experiments are made."
    )
    add = add_verb(
        actions,
        "add",
        _add,
        "send one vote",
        "Send one vote about a reply or a unit. The server and the key come from the flags, from "
        "LORIKEET_URL and LORIKEET_API_KEY, or from the demo in the data folder.",
    )
    thing = add.add_mutually_exclusive_group(required=True)
    thing.add_argument("--completion", metavar="ID", help="id of the reply, as in its field id")
    thing.add_argument("--request", metavar="ID", help="id of the request, as in the header x-request-id")
    thing.add_argument("--unit", metavar="UNIT", help="unit as requests name it, such as an end user")
    add.add_argument("--metric", required=True, metavar="NAME", help="name of the tenant's metric")
    add.add_argument("--value", required=True, metavar="VALUE", help="true, false, a number, or a label")
    add.add_argument("--id", metavar="ID", help="id of your own: the same vote sent again under it changes nothing")
    add.add_argument("--source", choices=get_args(Source), default="user", help="source of the vote (default: user)")
    add.add_argument("--comment", metavar="TEXT", help="the vote in words; it is redacted and encrypted")
    add.add_argument(
        "--url", metavar="URL", help="URL of the server (default: LORIKEET_URL, or the server of the data folder)"
    )
    add.add_argument("--key", metavar="KEY", help="API key (default: LORIKEET_API_KEY, or the key of the demo)")


def _add(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.chat.inference import InferenceClient, find_access

    with InferenceClient(find_access(arguments.url, arguments.key, environ)) as client:
        reply = client.vote(_body(arguments))
    text = f"the vote {reply['id']} is kept" + ("; it replaces an earlier one" if reply["replaced"] else "")
    return print_result(arguments, reply, text)


def _body(arguments: argparse.Namespace) -> dict[str, Any]:
    fields = {
        "completion_id": arguments.completion,
        "request_id": arguments.request,
        "unit": arguments.unit,
        "occurred_at": None if arguments.unit is None else time.time(),
        "metric": arguments.metric,
        "value": _value(arguments.value),
        "id": arguments.id,
        "source": arguments.source,
        "comment": arguments.comment,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _value(text: str) -> bool | int | float | str:
    """Return the value of a text: true, false, a number, or itself as a label."""
    try:
        value = json.loads(text, parse_constant=str)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text
