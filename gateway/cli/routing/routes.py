"""`lorikeet route`: a tenant's routing policies."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.cli.errors import CommandFailed
from gateway.cli.output import add_json_flag, print_json, print_result, print_table, utc
from gateway.cli.parts import name_part

if TYPE_CHECKING:
    from gateway.cli.output import Verbs

MAX_FILE_BYTES = 1 << 20


def register(verbs: Verbs) -> None:
    route = verbs.add_parser(
        "route",
        help="create, change and explain routes",
        description="Manage routes: model names of a tenant behind which a routing policy stands, such as weights, "
        "fallbacks and conditions.",
    )
    actions = route.add_subparsers(metavar="ACTION", required=True)
    create = actions.add_parser("create", help="create a route", description="Create a route from a JSON document.")
    update = actions.add_parser(
        "update",
        help="let a new version answer",
        description="Let a new version of a route answer. Takes effect on every gateway within a second.",
    )
    for parser, run in ((create, _create), (update, _update)):
        _add_name(parser)
        parser.add_argument("file", metavar="FILE", help="file with the policy as JSON; - reads standard input")
        parser.set_defaults(run=run)
    listing = actions.add_parser("list", help="list routes", description="List a tenant's routes, oldest first.")
    listing.set_defaults(run=_list)
    show = actions.add_parser("show", help="show a route", description="Show a route's policy and its versions.")
    show.set_defaults(run=_show)
    rollback = actions.add_parser(
        "rollback", help="let an earlier version answer", description="Let a version of a route answer that is kept."
    )
    rollback.set_defaults(run=_roll_back)
    delete = actions.add_parser("delete", help="delete a route", description="Delete a route with its versions.")
    delete.set_defaults(run=_delete)
    explain = actions.add_parser(
        "explain",
        help="show what a route would do with a request",
        description="Show what a route would do with a request now, and why, without running anything.",
    )
    explain.set_defaults(run=_explain)
    for parser in (show, rollback, delete, explain):
        _add_name(parser)
    rollback.add_argument("version", metavar="VERSION", type=int, help="number of the version")
    _add_request(explain)
    for parser in (create, update, listing, show, rollback, delete, explain):
        parser.add_argument("--tenant", required=True, metavar="NAME", help="name of the tenant that owns the route")
        add_json_flag(parser)


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the route, which clients use as the model id")


def _add_request(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what a request is like."""
    parser.add_argument("--request-id", metavar="ID", help="id of a request, whose draws are made again")
    parser.add_argument("--user", metavar="USER", help="end user that the request names")
    parser.add_argument("--api-key-id", metavar="ID", help="id of the API key")
    parser.add_argument("--metadata", metavar="KEY=VALUE", action="append", default=[], help="metadata; repeatable")
    parser.add_argument("--prompts", metavar="N", type=int, default=1, help="number of prompts")
    parser.add_argument("--prompt-tokens", metavar="N", type=int, default=0, help="tokens of the prompt")
    parser.add_argument("--max-tokens", metavar="N", type=int, default=256, help="most tokens of each completion")
    parser.add_argument("--n", metavar="N", type=int, default=1, help="number of completions")
    parser.add_argument("--tools", action="store_true", help="the request brings tools")
    parser.add_argument("--service-tier", metavar="TIER", default="default", help="service tier of the request")
    parser.add_argument("--stream", action="store_true", help="the reply is streamed")
    parser.add_argument("--time", metavar="HH:MM", help="time of day in UTC instead of now")
    parser.add_argument("--version", metavar="N", type=int, help="version of the route instead of the one that answers")


def _create(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    name, document = name_part(arguments.name, "route"), _document(arguments.file)
    with AdminClient.of(environ) as client:
        path = f"{client.tenant_path(arguments.tenant)}/routes"
        made = client.post(path, json={"name": name, "document": document})
    return print_result(arguments, made, f"route {name} of {arguments.tenant} answers with version {made['version']}")


def _update(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    name, document = name_part(arguments.name, "route"), _document(arguments.file)
    with AdminClient.of(environ) as client:
        made = client.post(f"{client.tenant_path(arguments.tenant)}/routes/{name}", json={"document": document})
    return print_result(arguments, made, f"route {name} of {arguments.tenant} answers with version {made['version']}")


def _list(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        routes = client.get_all(f"{client.tenant_path(arguments.tenant)}/routes")
    if arguments.json:
        print_json(routes)
        return 0
    rows = [(r["name"], r["version"], ", ".join(_targets(r["document"])), utc(r["changed_at"])) for r in routes]
    print_table(("NAME", "VERSION", "TARGETS", "CHANGED"), rows)
    return 0


def _show(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    name = name_part(arguments.name, "route")
    with AdminClient.of(environ) as client:
        path = f"{client.tenant_path(arguments.tenant)}/routes/{name}"
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
    with AdminClient.of(environ) as client:
        path = f"{client.tenant_path(arguments.tenant)}/routes/{name}/rollback"
        route = client.post(path, json={"version": arguments.version})
    return print_result(arguments, route, f"route {name} of {arguments.tenant} answers with version {route['version']}")


def _delete(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    name = name_part(arguments.name, "route")
    with AdminClient.of(environ) as client:
        client.delete(f"{client.tenant_path(arguments.tenant)}/routes/{name}")
    shown = {"name": name, "deleted": True}
    return print_result(arguments, shown, f"route {name} of {arguments.tenant} is deleted")


def _explain(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    name, request = name_part(arguments.name, "route"), _request(arguments)
    with AdminClient.of(environ) as client:
        told = client.post(f"{client.tenant_path(arguments.tenant)}/routes/{name}/explain", json=request)
    if arguments.json:
        print_json(told)
        return 0
    print(f"route {name}@{told['version']}, request {told['request_id']}")
    for edge in told["trace"]:
        print(f"  {edge['path']}: {edge['reason']}")
    rows = [
        (
            number,
            step["target"],
            step["first_token_ms"],
            _also(step),
            ", ".join(f"{kind} -> {at}" for kind, at in step["then"].items()),
        )
        for number, step in enumerate(told["steps"])
    ]
    print_table(("STEP", "TARGET", "FIRST TOKEN MS", "ALSO", "THEN"), rows)
    return 0


def _also(step: Mapping[str, Any]) -> str:
    """Return what a step does beside trying its target, in words."""
    told = []
    if step["wait_ms"]:
        told.append(f"after {step['wait_ms']} ms")
    if step["hedge_ms"] is not None:
        told.append(f"another replica after {step['hedge_ms']:.0f} ms")
    if step["has_check"]:
        told.append("answer is checked")
    return ", ".join([*told, *(f"copy to {copy['target']}" for copy in step["copies"])])


def _request(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the body that asks for an explanation. Raises CommandFailed."""
    pairs = [text.partition("=") for text in arguments.metadata]
    if any(not (key and equals) for key, equals, _ in pairs):
        raise CommandFailed("--metadata takes KEY=VALUE, such as plan=free")
    given = {
        "request_id": arguments.request_id,
        "user": arguments.user,
        "api_key_id": arguments.api_key_id,
        "time": arguments.time,
        "version": arguments.version,
    }
    return {key: value for key, value in given.items() if value is not None} | {
        "metadata": {key: value for key, _, value in pairs},
        "num_prompts": arguments.prompts,
        "prompt_tokens": arguments.prompt_tokens,
        "max_tokens": arguments.max_tokens,
        "n": arguments.n,
        "tools": arguments.tools,
        "service_tier": arguments.service_tier,
        "stream": arguments.stream,
    }


def _document(file: str) -> dict[str, Any]:
    """Return the document in a file. Raises CommandFailed."""
    try:
        with sys.stdin.buffer if file == "-" else Path(file).open("rb") as opened:
            text = opened.read(MAX_FILE_BYTES)
        document = json.loads(text)
    except OSError as error:
        raise CommandFailed(f"{file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CommandFailed(f"{file} is not JSON: {error}") from None
    if not isinstance(document, dict):
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
