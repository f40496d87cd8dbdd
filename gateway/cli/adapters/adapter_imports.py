"""`lorikeet adapter imports | cancel-import`: the imports of content, under way and ended."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.adapters.adapter_path import add_tenant
from gateway.cli.errors import EXIT_OK
from gateway.cli.output import add_json_flag, print_json, print_result, print_table, utc
from gateway.cli.parts import id_part

if TYPE_CHECKING:
    from gateway.cli.output import Verbs

NUM_SHOWN = 100


def register(actions: Verbs) -> None:
    """Add `lorikeet adapter imports | cancel-import` to the command line."""
    imports = actions.add_parser(
        "imports",
        help="list imports of adapters and the outcome of each",
        description=f"List the newest {NUM_SHOWN} imports of a tenant: uploads, downloads from sources, and files "
        "from the watched folder. Refused imports are listed with the reasons for a month.",
    )
    imports.set_defaults(run=_imports)
    cancel = actions.add_parser(
        "cancel-import", help="end an import that is under way", description="End an import that is under way."
    )
    cancel.add_argument("id", metavar="IMPORT_ID", help="id of the import, as `lorikeet adapter imports` shows it")
    cancel.set_defaults(run=_cancel)
    for parser in (imports, cancel):
        add_tenant(parser)
        add_json_flag(parser)


def _imports(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        imports = client.get(f"{client.tenant_path(arguments.tenant)}/adapter_imports", limit=NUM_SHOWN)["data"]
    if arguments.json:
        print_json(imports)
        return EXIT_OK
    rows = [
        (
            i["id"],
            i["name"],
            i["source"],
            i["state"],
            i["version"],
            i["received_bytes"] or None,
            i["size_bytes"],
            utc(i["created_at"]),
            i["reason"],
        )
        for i in imports
    ]
    print_table(("ID", "NAME", "SOURCE", "STATE", "VERSION", "RECEIVED", "BYTES", "CREATED", "REASON"), rows)
    return EXIT_OK


def _cancel(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    part = id_part(arguments.id)
    with AdminClient.of(environ) as client:
        path = f"{client.tenant_path(arguments.tenant)}/adapter_imports/{part}"
        canceled = client.delete(path)
    return print_result(arguments, canceled, f"{canceled['id']} is canceled")
