"""`lorikeet tenant`: the projects of the running server."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.output import add_json_flag, print_json, print_result, print_table, utc

if TYPE_CHECKING:
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet tenant` to the command line."""
    tenant = verbs.add_parser(
        "tenant",
        help="create, list, suspend and delete tenants",
        description="Manage the tenants of the running server.",
    )
    actions = tenant.add_subparsers(metavar="ACTION", required=True)
    create = actions.add_parser(
        "create", help="create a tenant", description="Create a tenant. A tenant that exists already is left unchanged."
    )
    create.add_argument("name", metavar="NAME", help="name of the tenant, up to 64 characters")
    add_json_flag(create)
    create.set_defaults(run=_create)
    listing = actions.add_parser("list", help="list tenants", description="List tenants, oldest first.")
    listing.add_argument("--deleted", action="store_true", help="list deleted tenants as well")
    add_json_flag(listing)
    listing.set_defaults(run=_list)
    suspend = actions.add_parser(
        "suspend",
        help="suspend a tenant",
        description="Refuse the keys of a tenant until the tenant is resumed. Takes effect within a second.",
    )
    resume = actions.add_parser(
        "resume", help="resume a tenant", description="Accept the keys of a suspended tenant again."
    )
    for parser, action in ((suspend, "suspend"), (resume, "resume")):
        parser.add_argument("name", metavar="NAME", help="name of the tenant")
        add_json_flag(parser)
        parser.set_defaults(run=_set_suspended, action=action)
    modify = actions.add_parser(
        "modify",
        help="change how much content of a tenant is stored, and its service tiers",
        description="Change how long requests and replies of a tenant are stored, and which service tiers its requests "
        "may ask for. Stored content is encrypted.",
    )
    modify.add_argument("name", metavar="NAME", help="name of the tenant")
    modify.add_argument(
        "--keep-replies",
        choices=("yes", "no"),
        help="keep the replies to requests with an Idempotency-Key for a day: yes or no",
    )
    modify.add_argument(
        "--store-days",
        type=int,
        metavar="N",
        help="days for which responses are stored, and completions when a request asks for storing (0: never)",
    )
    modify.add_argument(
        "--log-content-days",
        type=int,
        metavar="N",
        help="days for which all requests and replies are logged with personal data redacted (0: never)",
    )
    modify.add_argument(
        "--service-tiers",
        metavar="TIERS",
        help="service tiers that requests may ask for, separated by commas: default,flex or default,flex,priority",
    )
    add_json_flag(modify)
    modify.set_defaults(run=_modify)
    delete = actions.add_parser(
        "delete",
        help="delete a tenant",
        description="Delete a tenant for good. The keys of the tenant stop working within a second, the name "
        "becomes free, and the content is purged after the retention time. Usage and the audit "
        "log are kept.",
    )
    delete.add_argument("name", metavar="NAME", help="name of the tenant")
    delete.add_argument(
        "--retention-days", type=int, metavar="N", help="days until the content of the tenant is purged (default: 30)"
    )
    add_json_flag(delete)
    delete.set_defaults(run=_delete)


def _create(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient, Refused

    with AdminClient.of(environ) as client:
        try:
            project, created = client.post("/projects", json={"name": arguments.name}), True
        except Refused as refused:
            if refused.code != "conflict":
                raise
            project, created = client.get("/projects", name=arguments.name)["data"][0], False
    shown = {"id": project["id"], "name": project["name"], "created": created}
    how = "created" if created else "exists already"
    return print_result(arguments, shown, f"tenant {project['name']} {how}: {project['id']}")


def _list(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        projects = client.get_all("/projects", include_archived=str(arguments.deleted).lower())
    if arguments.json:
        print_json(projects)
        return 0
    rows = [(p["name"], p["id"], p["status"], utc(p["created_at"]), utc(p["purge_after"])) for p in projects]
    print_table(("NAME", "ID", "STATUS", "CREATED", "PURGED AFTER"), rows)
    return 0


def _set_suspended(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        project = client.post(f"{client.tenant_path(arguments.name)}/{arguments.action}")
    return print_result(arguments, project, f"tenant {project['name']} is {project['status']}")


def _modify(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    body: dict[str, object] = {}
    if arguments.keep_replies is not None:
        body["keep_replies"] = arguments.keep_replies == "yes"
    if arguments.store_days is not None:
        body["store_days"] = arguments.store_days
    if arguments.log_content_days is not None:
        body["log_content_days"] = arguments.log_content_days
    if arguments.service_tiers is not None:
        body["service_tiers"] = [tier.strip() for tier in arguments.service_tiers.split(",")]
    with AdminClient.of(environ) as client:
        project = client.post(client.tenant_path(arguments.name), json=body)
    replies = "kept for a day" if project["keep_replies"] else "not kept"
    chats = f"stored for {project['store_days']} days" if project["store_days"] else "not stored"
    log = f"logged for {project['log_content_days']} days" if project["log_content_days"] else "not logged"
    text = (
        f"tenant {project['name']}: replies for an Idempotency-Key are {replies}, completions are {chats}, "
        f"content is {log}, service tiers: {', '.join(project['service_tiers'])}"
    )
    return print_result(arguments, project, text)


def _delete(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    body = {} if arguments.retention_days is None else {"retention_days": arguments.retention_days}
    with AdminClient.of(environ) as client:
        project = client.post(f"{client.tenant_path(arguments.name)}/archive", json=body)
    text = f"tenant {project['name']} is deleted; its content is purged after {utc(project['purge_after'])}"
    return print_result(arguments, project, text)
