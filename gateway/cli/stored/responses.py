"""`lorikeet response`: a stored response, read, cancelled and deleted."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.batches.access import add_access, project_client
from gateway.cli.output import print_result
from gateway.cli.path_parts import id_part
from gateway.cli.stored.items import add_items_flags, print_items, text_of
from gateway.cli.verbs import add_group, add_verb

if TYPE_CHECKING:
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet response` to the command line."""
    actions = add_group(
        verbs, "response", "Read, cancel and delete the stored responses of a tenant, with an API key of the tenant."
    )
    for name, help, description, run in (
        ("show", "show a response", "Print what a stored response says; --json prints all of it.", _show),
        ("items", "list the input of a response", "List the input items of a stored response.", _items),
        ("cancel", "cancel a response", "End a response that runs in the background.", _cancel),
        ("delete", "delete a response", "Delete a stored response for good. None can go on from it any more.", _delete),
    ):
        action = add_verb(actions, name, run, help, description, has_json=False)
        action.add_argument("id", metavar="RESPONSE_ID", help="id of the response, such as resp_abc")
        if run is _items:
            add_items_flags(action)
        add_access(action)


def _show(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    with project_client(arguments, environ) as client:
        found = client.get(f"/responses/{id_part(arguments.id)}")
    texts = [text for item in found["output"] if item["type"] != "reasoning" and (text := text_of(item))]
    return print_result(arguments, found, "\n".join([f"{found['id']}: {found['status']}, {found['model']}", *texts]))


def _items(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    with project_client(arguments, environ) as client:
        return print_items(arguments, client, f"/responses/{id_part(arguments.id)}/input_items")


def _cancel(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    with project_client(arguments, environ) as client:
        found = client.post(f"/responses/{id_part(arguments.id)}/cancel", {})
    return print_result(arguments, found, f"{found['id']}: {found['status']}")


def _delete(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    with project_client(arguments, environ) as client:
        gone = client.delete(f"/responses/{id_part(arguments.id)}")
    return print_result(arguments, gone, f"deleted {gone['id']}")
