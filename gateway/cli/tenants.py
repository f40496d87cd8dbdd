"""`lorikeet tenant`: the projects of the running server."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.output import add_json_flag, print_json, print_table, utc

if TYPE_CHECKING:
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    tenant = verbs.add_parser("tenant", help="create and list tenants", description="Tenants of the running server.")
    actions = tenant.add_subparsers(metavar="ACTION", required=True)
    create = actions.add_parser(
        "create", help="create a tenant", description="Create a tenant; one that exists already is left as it is."
    )
    create.add_argument("name", metavar="NAME", help="up to 64 characters")
    add_json_flag(create)
    create.set_defaults(run=_create)
    listing = actions.add_parser("list", help="list tenants", description="List tenants, oldest first.")
    add_json_flag(listing)
    listing.set_defaults(run=_list)


def _create(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient, Refused

    with AdminClient.of(environ) as client:
        try:
            project, created = client.post("/projects", json={"name": arguments.name}), True
        except Refused as refused:
            if refused.code != "conflict":
                raise
            project, created = client.get("/projects", name=arguments.name)["data"][0], False
    if arguments.json:
        print_json({"id": project["id"], "name": project["name"], "created": created})
    else:
        print(f"tenant {project['name']} {'created' if created else 'exists already'}: {project['id']}")
    return 0


def _list(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        projects = client.get_all("/projects")
    if arguments.json:
        print_json(projects)
    else:
        print_table(("NAME", "ID", "CREATED"), [(p["name"], p["id"], utc(p["created_at"])) for p in projects])
    return 0
