"""`lorikeet adapter versions | promote | rollback | retire | delete-version`: the versions of an adapter."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.adapters.adapter_path import adapter_path, add_adapter, version_path
from gateway.cli.errors import EXIT_OK
from gateway.cli.output import add_json_flag, print_json, print_result, print_table, utc

if TYPE_CHECKING:
    from gateway.cli.output import Verbs


def register(actions: Verbs) -> None:
    """Add `lorikeet adapter versions | promote | rollback | retire | delete-version` to the command line."""
    versions = actions.add_parser(
        "versions", help="list an adapter's versions", description="List an adapter's versions, newest first."
    )
    add_adapter(versions)
    versions.set_defaults(run=_versions)
    promote = actions.add_parser(
        "promote",
        help="make a version the current one",
        description="Let <base>:<name> answer with this version, on every gateway within a second. Running "
        "requests finish with the version with which each began.",
    )
    add_adapter(promote, "NAME@VERSION")
    promote.set_defaults(run=_promote)
    rollback = actions.add_parser(
        "rollback",
        help="return to the previous version",
        description="Make the previously current version the current version again. A second rollback undoes "
        "the first rollback.",
    )
    add_adapter(rollback)
    rollback.set_defaults(run=_roll_back)
    retire = actions.add_parser(
        "retire",
        help="take a version out of use for good",
        description="Take a version out of use for good. The current version and versions with an alias "
        "cannot be retired.",
    )
    add_adapter(retire, "NAME@VERSION")
    retire.set_defaults(run=_retire)
    delete = actions.add_parser(
        "delete-version",
        help="delete a version that was retired or rejected",
        description="Delete a version that was retired or rejected. The version's number is not used again.",
    )
    add_adapter(delete, "NAME@VERSION")
    delete.set_defaults(run=_delete)
    for parser in (versions, promote, rollback, retire, delete):
        add_json_flag(parser)


def _versions(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        versions = client.get_all(f"{adapter_path(client, arguments.tenant, arguments.name)}/versions")
    if arguments.json:
        print_json(versions)
        return EXIT_OK
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
    print_table(("VERSION", "STATE", "RANK", "BYTES", "DIGEST", "SOURCE", "CREATED", "REASON"), rows)
    return EXIT_OK


def _promote(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        adapter = client.post(f"{version_path(client, arguments.tenant, arguments.name)}/promote", json={})
    return print_result(arguments, adapter, f"{adapter['model']} is now version {adapter['version']}")


def _roll_back(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        adapter = client.post(f"{adapter_path(client, arguments.tenant, arguments.name)}/rollback", json={})
    text = f"{adapter['model']} is now version {adapter['version']}; before it was {adapter['previous_version']}"
    return print_result(arguments, adapter, text)


def _retire(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        version = client.post(f"{version_path(client, arguments.tenant, arguments.name)}/retire", json={})
    return print_result(arguments, version, f"{version['id']} is retired")


def _delete(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        deleted = client.delete(version_path(client, arguments.tenant, arguments.name))
    return print_result(arguments, deleted, f"{deleted['id']} is deleted")
