"""`lorikeet route`: routing policies of a tenant, or of the operator for all tenants."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.cli.errors import CommandFailed
from gateway.cli.output import print_json, print_result, print_rows, print_table, utc
from gateway.cli.path_parts import name_part
from gateway.cli.routing.explain import add_request, explain, read_object
from gateway.cli.verbs import add_group, add_verb, over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs

MAX_FILE_BYTES = 1 << 20


def register(verbs: Verbs) -> None:
    """Add `lorikeet route` to the command line."""
    actions = add_group(
        verbs,
        "route",
        "Manage routes: model names of a tenant, or of all tenants, behind which a routing policy stands, "
        "such as weights, fallbacks and conditions.",
    )
    create = add_verb(actions, "create", _create, "create a route", "Create a route from a JSON document.")
    update = add_verb(
        actions,
        "update",
        _update,
        "let a new version answer",
        "Let a new version of a route answer. Takes effect on every gateway within a second.",
    )
    for parser in (create, update):
        _add_name(parser)
        parser.add_argument("file", metavar="FILE", help="file with the policy as JSON; - reads standard input")
    listing = add_verb(actions, "list", _list, "list routes", "List a tenant's routes, oldest first.")
    show = add_verb(actions, "show", _show, "show a route", "Show a route's policy and its versions.")
    rollback = add_verb(
        actions,
        "rollback",
        _roll_back,
        "let an earlier version answer",
        "Let an earlier version of a route answer again. The oldest versions are not kept.",
    )
    delete = add_verb(actions, "delete", _delete, "delete a route", "Delete a route with its versions.")
    explained = add_verb(
        actions,
        "explain",
        explain,
        "show what a request would meet",
        "Show what a request to a model would meet now, and why, with prices, without running anything: "
        "what a route would do, also one for all tenants, or which model answers.",
    )
    for parser in (show, rollback, delete):
        _add_name(parser)
    rollback.add_argument("version", metavar="VERSION", type=int, help="number of the version")
    for parser in (create, update, listing, show, rollback, delete):
        owner = parser.add_mutually_exclusive_group(required=True)
        owner.add_argument("--tenant", metavar="NAME", help="name of the tenant that owns the route")
        owner.add_argument("--all-tenants", action="store_true", help="the operator's route, for all tenants")
    add_request(explained)


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the route, which clients use as the model id")


def _path(client: AdminClient, arguments: argparse.Namespace, name: str = "") -> str:
    """Return the path of a route, or of all routes of the owner that the arguments name."""
    base = "" if arguments.all_tenants else client.tenant_path(arguments.tenant)
    return f"{base}/routes/{name}" if name else f"{base}/routes"


def _owner(arguments: argparse.Namespace) -> str:
    return "for all tenants" if arguments.all_tenants else f"of {arguments.tenant}"


def _create(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    name, document = name_part(arguments.name, "route"), _document(arguments.file)
    with AdminClient.from_environment(environ) as client:
        made = client.post(_path(client, arguments), json={"name": name, "document": document})
    return print_result(arguments, made, f"route {name} {_owner(arguments)} answers with version {made['version']}")


def _update(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    name, document = name_part(arguments.name, "route"), _document(arguments.file)
    with AdminClient.from_environment(environ) as client:
        made = client.post(_path(client, arguments, name), json={"document": document})
    return print_result(arguments, made, f"route {name} {_owner(arguments)} answers with version {made['version']}")


@over_admin
def _list(arguments: argparse.Namespace, client: AdminClient) -> int:
    routes = client.get_all(_path(client, arguments))
    rows = [(r["name"], r["version"], ", ".join(_targets(r["document"])), utc(r["changed_at"])) for r in routes]
    return print_rows(arguments, routes, ("NAME", "VERSION", "TARGETS", "CHANGED"), rows)


def _show(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    name = name_part(arguments.name, "route")
    with AdminClient.from_environment(environ) as client:
        path = _path(client, arguments, name)
        route, versions = client.get(path), client.get_all(f"{path}/versions")
    if arguments.json:
        print_json(route | {"versions": versions})
        return 0
    print(json.dumps(route["document"], indent=2, ensure_ascii=False))
    rows = [
        (v["version"], utc(v["created_at"]), "answers" if v["version"] == route["version"] else "") for v in versions
    ]
    print_table(("VERSION", "CREATED", ""), rows)
    return 0


def _roll_back(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    name = name_part(arguments.name, "route")
    with AdminClient.from_environment(environ) as client:
        route = client.post(f"{_path(client, arguments, name)}/rollback", json={"version": arguments.version})
    return print_result(arguments, route, f"route {name} {_owner(arguments)} answers with version {route['version']}")


def _delete(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    name = name_part(arguments.name, "route")
    with AdminClient.from_environment(environ) as client:
        client.delete(_path(client, arguments, name))
    shown = {"name": name, "deleted": True}
    return print_result(arguments, shown, f"route {name} {_owner(arguments)} is deleted")


def _document(file: str) -> dict[str, Any]:
    """Return the policy that a file holds.

    Raises CommandFailed: when the file holds no JSON object.
    """
    document = read_object(file, MAX_FILE_BYTES)
    if document is None:
        raise CommandFailed(f'{file} holds no policy: it is {{"root": ...}}')
    return document


def _targets(document: object) -> list[str]:
    """Return the model strings of a document, each once."""
    if isinstance(document, list):
        return list(dict.fromkeys(target for each in document for target in _targets(each)))
    if not isinstance(document, dict):
        return []
    own = [document["target"]] if isinstance(document.get("target"), str) else []
    return list(dict.fromkeys(own + _targets([each for key, each in document.items() if key != "when"])))
