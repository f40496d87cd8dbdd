"""`lorikeet conversation`: a conversation and its items, read and deleted."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.batches.access import add_access, project_client
from gateway.cli.output import print_result, utc
from gateway.cli.path_parts import id_part
from gateway.cli.stored.items import add_items_flags, print_items
from gateway.cli.verbs import add_group, add_verb

if TYPE_CHECKING:
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet conversation` to the command line."""
    actions = add_group(
        verbs, "conversation", "Read and delete the conversations of a tenant, with an API key of the tenant."
    )
    for name, help, description, run in (
        ("show", "show a conversation", "Print when a conversation was made, and its metadata.", _show),
        ("items", "list the items of a conversation", "List the items of a conversation, the oldest first.", _items),
        ("delete", "delete a conversation", "Delete a conversation with its items for good.", _delete),
    ):
        action = add_verb(actions, name, run, help, description, has_json=False)
        action.add_argument("id", metavar="CONVERSATION_ID", help="id of the conversation, such as conv_abc")
        if run is _items:
            add_items_flags(action)
        add_access(action)


def _show(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    with project_client(arguments, environ) as client:
        found = client.get(f"/conversations/{id_part(arguments.id)}")
    pairs = [f"  {name}: {value}" for name, value in found["metadata"].items()]
    return print_result(arguments, found, "\n".join([f"{found['id']}: made {utc(found['created_at'])}", *pairs]))


def _items(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    with project_client(arguments, environ) as client:
        return print_items(arguments, client, f"/conversations/{id_part(arguments.id)}/items")


def _delete(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    with project_client(arguments, environ) as client:
        gone = client.delete(f"/conversations/{id_part(arguments.id)}")
    return print_result(arguments, gone, f"deleted {gone['id']}")
