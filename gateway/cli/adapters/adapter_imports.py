"""`lorikeet adapter imports | cancel-import`: the imports of content, under way and ended."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.adapters.adapter_path import add_tenant
from gateway.cli.output import print_result, print_rows, utc
from gateway.cli.path_parts import id_part
from gateway.cli.verbs import add_verb, over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs

NUM_SHOWN = 100


def register(actions: Verbs) -> None:
    """Add `lorikeet adapter imports | cancel-import` to the command line."""
    imports = add_verb(
        actions,
        "imports",
        _imports,
        "list imports of adapters and the outcome of each",
        f"List the newest {NUM_SHOWN} imports of a tenant: uploads, downloads from sources, and files "
        "from the watched folder. Refused imports are listed with the reasons for a month.",
    )
    cancel = add_verb(
        actions, "cancel-import", _cancel, "end an import that is under way", "End an import that is under way."
    )
    cancel.add_argument("id", metavar="IMPORT_ID", help="id of the import, as `lorikeet adapter imports` shows it")
    for parser in (imports, cancel):
        add_tenant(parser)


@over_admin
def _imports(arguments: argparse.Namespace, client: AdminClient) -> int:
    imports = client.get(f"{client.tenant_path(arguments.tenant)}/adapter_imports", limit=NUM_SHOWN)["data"]
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
    return print_rows(
        arguments, imports, ("ID", "NAME", "SOURCE", "STATE", "VERSION", "RECEIVED", "BYTES", "CREATED", "REASON"), rows
    )


def _cancel(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    part = id_part(arguments.id)
    with AdminClient.from_environment(environ) as client:
        path = f"{client.tenant_path(arguments.tenant)}/adapter_imports/{part}"
        canceled = client.delete(path)
    return print_result(arguments, canceled, f"{canceled['id']} is canceled")
