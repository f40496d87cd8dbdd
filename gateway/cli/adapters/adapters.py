"""`lorikeet adapter`: the adapters of a tenant of the running server; here the verbs that are about a whole adapter."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.cli.adapters import adapter_add, adapter_imports, adapter_settings, adapter_shares, adapter_versions
from gateway.cli.adapters.adapter_path import adapter_path, add_adapter, add_tenant, split_version
from gateway.cli.errors import EXIT_FAILED, EXIT_OK
from gateway.cli.output import print_json, print_result, print_rows, utc
from gateway.cli.server import gguf_file, merge
from gateway.cli.verbs import add_group, add_verb, over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs

_DESCRIPTION = """\
Manage the LoRA adapters of a tenant.

Each added folder or archive becomes a new version of the adapter. The version is inspected, tried by an engine, and
then becomes the current version, with which <base>:<name> answers. Versions never change; promote and rollback choose
which version is current.
"""
_EPILOG = """\
examples:
  lorikeet adapter add ./adapter --tenant initech --name support
  lorikeet adapter versions support --tenant initech
  lorikeet adapter rollback support --tenant initech
"""


def register(verbs: Verbs) -> None:
    """Add `lorikeet adapter` to the command line."""
    actions = add_group(verbs, "adapter", _DESCRIPTION, epilog=_EPILOG)
    adapter_add.register(actions)
    listing = add_verb(actions, "list", _list, "list adapters", "List a tenant's adapters, oldest first.")
    add_tenant(listing)
    show = add_verb(
        actions,
        "show",
        _show,
        "show an adapter, or one version of it",
        "Show an adapter and the settings of the adapter; or, with @VERSION, the results of "
        "inspecting and trying that version.",
    )
    add_adapter(show, "NAME[@VERSION]")
    remove = add_verb(
        actions,
        "remove",
        _remove,
        "remove an adapter",
        "Remove an adapter with all versions, and the aliases that point at any of the versions.",
    )
    add_adapter(remove)
    add_verb(
        actions,
        "verify",
        _verify,
        "check every stored adapter against the database",
        "Read the stored files of all adapters of all tenants and compare the digests. Exits with "
        "1 if files of a version are missing or damaged.",
    )
    for room in (adapter_versions, adapter_settings, adapter_shares, adapter_imports, merge, gguf_file):
        room.register(actions)


@over_admin
def _list(arguments: argparse.Namespace, client: AdminClient) -> int:
    adapters = client.get_all(f"{client.tenant_path(arguments.tenant)}/adapters")
    return print_rows(
        arguments,
        adapters,
        ("NAME", "MODEL", "VERSION", "RANK", "BYTES", "DIGEST", "CREATED"),
        [
            (
                a["name"],
                a["model"],
                a["version"],
                a["rank"],
                a["size_bytes"],
                (a["digest"] or "")[:12],
                utc(a["created_at"]),
            )
            for a in adapters
        ],
    )


def _show(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    name, version = split_version(arguments.name)
    with AdminClient.from_environment(environ) as client:
        path = adapter_path(client, arguments.tenant, name)
        if version is not None:
            shown = client.get(f"{path}/versions/{version}")
        else:
            shown = client.get(path) | {"shared_with": _shared_with(client, path)}
    if arguments.json:
        print_json(shown)
    else:
        _print_fields(shown)
    return EXIT_OK


def _shared_with(client: AdminClient, path: str) -> list[str]:
    """Return the names of the tenants that an adapter is shared with."""
    shares = client.get_all(f"{path}/shares")
    return [client.get(f"/projects/{share['project_id']}")["name"] for share in shares]


def _print_fields(shown: dict[str, Any], indent: str = "") -> None:
    """Print a field per line, and the fields within a field below its line.

    indent: the spaces before each field.
    """
    for name, value in shown.items():
        if name == "object":
            continue
        if isinstance(value, dict) and value:
            print(f"{indent}{name}:")
            _print_fields(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            print(f"{indent}{name}: {len(value)} (--json shows them)")
        elif isinstance(value, list):
            print(f"{indent}{name}: {', '.join(_ranges(value)) or '-'}")
        else:
            at = utc(value) if name.endswith("_at") else value
            print(f"{indent}{name}: {'-' if at in (None, '', {}) else at}")


def _ranges(values: list[Any]) -> list[str]:
    """Return numbers as text, with whole numbers that follow each other as one range."""
    if not all(type(value) is int for value in values):
        return list(map(str, values))
    runs: list[list[int]] = []
    for number in values:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]


@over_admin
def _remove(arguments: argparse.Namespace, client: AdminClient) -> int:
    aliases = client.delete(adapter_path(client, arguments.tenant, arguments.name))["aliases"]
    shown = {"name": arguments.name, "removed": True, "aliases": aliases}
    text = f"adapter {arguments.name} of {arguments.tenant} is removed"
    if aliases:
        text += f", and with it the aliases that pointed at it: {', '.join(aliases)}"
    return print_result(arguments, shown, text)


@over_admin
def _verify(arguments: argparse.Namespace, client: AdminClient) -> int:
    found = client.post("/adapters/verify", json={})
    faults = [*found["missing"], *found["damaged"]]
    lines = [f"{found['num_verified']} contents are whole, {found['num_unreferenced']} await collection"]
    lines += [f"{fault['project_id']} {fault['name']}@{fault['version']}: {fault['detail']}" for fault in faults]
    print_result(arguments, found, "\n".join(lines))
    return EXIT_FAILED if faults else EXIT_OK
