"""`lorikeet adapter versions | promote | rollback | retire | delete-version`: the versions of an adapter."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gateway.cli.adapters.adapter_path import adapter_path, add_adapter, version_path
from gateway.cli.output import print_result, print_rows, utc
from gateway.cli.verbs import add_verb, over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs


def register(actions: Verbs) -> None:
    """Add `lorikeet adapter versions | promote | rollback | retire | delete-version` to the command line."""
    versions = add_verb(
        actions, "versions", _versions, "list an adapter's versions", "List an adapter's versions, newest first."
    )
    add_adapter(versions)
    promote = add_verb(
        actions,
        "promote",
        _promote,
        "make a version the current one",
        "Let <base>:<name> answer with this version, on every gateway within a second. Running "
        "requests finish with the version with which each began.",
    )
    add_adapter(promote, "NAME@VERSION")
    rollback = add_verb(
        actions,
        "rollback",
        _roll_back,
        "return to the previous version",
        "Make the previously current version the current version again. A second rollback undoes the first rollback.",
    )
    add_adapter(rollback)
    retire = add_verb(
        actions,
        "retire",
        _retire,
        "take a version out of use for good",
        "Take a version out of use for good. The current version and versions with an alias cannot be retired.",
    )
    add_adapter(retire, "NAME@VERSION")
    delete = add_verb(
        actions,
        "delete-version",
        _delete,
        "delete a version that was retired or rejected",
        "Delete a version that was retired or rejected. The version's number is not used again.",
    )
    add_adapter(delete, "NAME@VERSION")


@over_admin
def _versions(arguments: argparse.Namespace, client: AdminClient) -> int:
    versions = client.get_all(f"{adapter_path(client, arguments.tenant, arguments.name)}/versions")
    rows = [
        (
            v["version"],
            f"{v['state']}, current" if v["current"] else v["state"],
            v["rank"],
            v["size_bytes"],
            v["digest"][:12],
            v["source"],
            utc(v["created_at"]),
            v["reason"],
        )
        for v in versions
    ]
    return print_rows(
        arguments, versions, ("VERSION", "STATE", "RANK", "BYTES", "DIGEST", "SOURCE", "CREATED", "REASON"), rows
    )


@over_admin
def _promote(arguments: argparse.Namespace, client: AdminClient) -> int:
    adapter = client.post(f"{version_path(client, arguments.tenant, arguments.name)}/promote", json={})
    return print_result(arguments, adapter, f"{adapter['model']} is now version {adapter['version']}")


@over_admin
def _roll_back(arguments: argparse.Namespace, client: AdminClient) -> int:
    adapter = client.post(f"{adapter_path(client, arguments.tenant, arguments.name)}/rollback", json={})
    text = f"{adapter['model']} is now version {adapter['version']}; before it was {adapter['previous_version']}"
    return print_result(arguments, adapter, text)


@over_admin
def _retire(arguments: argparse.Namespace, client: AdminClient) -> int:
    version = client.post(f"{version_path(client, arguments.tenant, arguments.name)}/retire", json={})
    return print_result(arguments, version, f"{version['id']} is retired")


@over_admin
def _delete(arguments: argparse.Namespace, client: AdminClient) -> int:
    deleted = client.delete(version_path(client, arguments.tenant, arguments.name))
    return print_result(arguments, deleted, f"{deleted['id']} is deleted")
