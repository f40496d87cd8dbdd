"""`lorikeet adapter share | unshare`: the other tenants that may call an adapter."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gateway.cli.adapters.adapter_path import adapter_path, add_adapter
from gateway.cli.output import print_result
from gateway.cli.verbs import add_verb, over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs


def register(actions: Verbs) -> None:
    """Add `lorikeet adapter share | unshare` to the command line."""
    share = add_verb(
        actions,
        "share",
        _share,
        "let another tenant call an adapter",
        "Let another tenant call an adapter by name. Requests count against the limits and the "
        "bill of the tenant who calls. If the other tenant has an adapter of the same name, that "
        "adapter answers. `lorikeet adapter show` lists the tenants with whom an adapter is "
        "shared.",
    )
    unshare = add_verb(
        actions,
        "unshare",
        _unshare,
        "end the sharing of an adapter",
        "End the sharing of an adapter with another tenant. Running requests finish.",
    )
    for parser in (share, unshare):
        add_adapter(parser)
        parser.add_argument("--with", dest="other", required=True, metavar="TENANT", help="name of the other tenant")


@over_admin
def _share(arguments: argparse.Namespace, client: AdminClient) -> int:
    path = adapter_path(client, arguments.tenant, arguments.name)
    share = client.post(f"{path}/shares", json={"project_id": client.tenant_id(arguments.other)})
    return print_result(arguments, share, f"{arguments.other} may call {arguments.name} of {arguments.tenant}")


@over_admin
def _unshare(arguments: argparse.Namespace, client: AdminClient) -> int:
    path = adapter_path(client, arguments.tenant, arguments.name)
    ended = client.delete(f"{path}/shares/{client.tenant_id(arguments.other)}")
    return print_result(
        arguments, ended, f"{arguments.other} may not call {arguments.name} of {arguments.tenant} any more"
    )
