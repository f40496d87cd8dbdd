"""`lorikeet adapter`: the adapters of a tenant of the running server."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gateway.cli import merge
from gateway.cli.errors import CommandFailed
from gateway.cli.output import add_json_flag, print_json, print_table, utc

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs

FILE_NAMES = ("adapter_config.json", "adapter_model.safetensors")


def register(verbs: Verbs) -> None:
    adapter = verbs.add_parser(
        "adapter", help="add, list and remove adapters", description="LoRA adapters of a tenant, as PEFT saves them."
    )
    actions = adapter.add_subparsers(metavar="ACTION", required=True)
    add = actions.add_parser(
        "add",
        help="upload an adapter",
        description="Upload an adapter. The same name with other content becomes a new version and the current one.",
    )
    add.add_argument("--tenant", required=True, metavar="NAME", help="the tenant it belongs to")
    add.add_argument("--name", required=True, metavar="NAME", help="the adapter's part of the model id <base>:<name>")
    add.add_argument("path", metavar="PATH", type=Path, help=f"folder that holds {' and '.join(FILE_NAMES)}")
    add_json_flag(add)
    add.set_defaults(run=_add)
    listing = actions.add_parser("list", help="list adapters", description="List a tenant's adapters, oldest first.")
    listing.add_argument("--tenant", required=True, metavar="NAME", help="the tenant whose adapters to list")
    add_json_flag(listing)
    listing.set_defaults(run=_list)
    remove = actions.add_parser(
        "remove", help="remove an adapter", description="Remove an adapter with all its versions."
    )
    remove.add_argument("--tenant", required=True, metavar="NAME", help="the tenant it belongs to")
    remove.add_argument("name", metavar="NAME", help="the adapter")
    add_json_flag(remove)
    remove.set_defaults(run=_remove)
    merge.register(actions)


def _add(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        path = client.tenant_path(arguments.tenant)
        adapter = _upload(client, f"{path}/adapters", arguments.name, arguments.path)
    if arguments.json:
        print_json(adapter)
    else:
        what = "is now" if adapter["changed"] else "is already"
        print(f"{adapter['model']} {what} version {adapter['version']} ({adapter['digest'][:12]})")
    return 0


def _upload(client: AdminClient, path: str, name: str, folder: Path) -> dict[str, Any]:
    from adapters.errors import AdapterRejected
    from adapters.safe_file import open_regular

    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise CommandFailed(f"{folder} {what}: PATH is the folder that holds {' and '.join(FILE_NAMES)}")
    with ExitStack() as stack:
        try:
            files = {file_name: stack.enter_context(open_regular(folder / file_name)) for file_name in FILE_NAMES}
        except AdapterRejected as error:
            raise CommandFailed(f"{folder}: {error.reasons[0]}") from None
        return client.post(path, data={"name": name}, files=files)


def _list(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        adapters = client.get_all(f"{client.tenant_path(arguments.tenant)}/adapters")
    if arguments.json:
        print_json(adapters)
        return 0
    print_table(
        ("NAME", "MODEL", "VERSION", "RANK", "BYTES", "DIGEST", "CREATED"),
        [
            (a["name"], a["model"], a["version"], a["rank"], a["size_bytes"], a["digest"][:12], utc(a["created_at"]))
            for a in adapters
        ],
    )
    return 0


def _remove(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        path = client.tenant_path(arguments.tenant)
        client.delete(f"{path}/adapters/{quote(arguments.name, safe='')}")
    if arguments.json:
        print_json({"name": arguments.name, "removed": True})
    else:
        print(f"adapter {arguments.name} of {arguments.tenant} is removed")
    return 0
