"""`lorikeet tenant`: the projects of the running server."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.output import print_result, print_rows, utc
from gateway.cli.verbs import add_group, add_verb, over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet tenant` to the command line."""
    actions = add_group(verbs, "tenant", "Manage the tenants of the running server.")
    create = add_verb(
        actions,
        "create",
        _create,
        "create a tenant",
        "Create a tenant. A tenant that exists already is left unchanged.",
    )
    create.add_argument("name", metavar="NAME", help="name of the tenant, up to 64 characters")
    listing = add_verb(actions, "list", _list, "list tenants", "List tenants, oldest first.")
    listing.add_argument("--deleted", action="store_true", help="list deleted tenants as well")
    suspend = add_verb(
        actions,
        "suspend",
        _set_suspended,
        "suspend a tenant",
        "Refuse the keys of a tenant until the tenant is resumed. Takes effect within a second.",
        action="suspend",
    )
    resume = add_verb(
        actions,
        "resume",
        _set_suspended,
        "resume a tenant",
        "Accept the keys of a suspended tenant again.",
        action="resume",
    )
    for parser in (suspend, resume):
        parser.add_argument("name", metavar="NAME", help="name of the tenant")
    modify = add_verb(
        actions,
        "modify",
        _modify,
        "change how much content of a tenant is stored, and its service tiers",
        "Change how long requests and replies of a tenant are stored, and which service tiers its requests "
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
    delete = add_verb(
        actions,
        "delete",
        _delete,
        "delete a tenant",
        "Delete a tenant for good. The keys of the tenant stop working within a second, the name "
        "becomes free, and the content is purged after the retention time. Usage and the audit "
        "log are kept.",
    )
    delete.add_argument("name", metavar="NAME", help="name of the tenant")
    delete.add_argument(
        "--retention-days", type=int, metavar="N", help="days until the content of the tenant is purged (default: 30)"
    )


@over_admin
def _create(arguments: argparse.Namespace, client: AdminClient) -> int:
    from gateway.cli.client import RequestRefused

    try:
        project, created = client.post("/projects", json={"name": arguments.name}), True
    except RequestRefused as refused:
        if refused.code != "conflict":
            raise
        project, created = client.get("/projects", name=arguments.name)["data"][0], False
    shown = {"id": project["id"], "name": project["name"], "created": created}
    how = "created" if created else "exists already"
    return print_result(arguments, shown, f"tenant {project['name']} {how}: {project['id']}")


@over_admin
def _list(arguments: argparse.Namespace, client: AdminClient) -> int:
    projects = client.get_all("/projects", include_archived=str(arguments.deleted).lower())
    rows = [(p["name"], p["id"], p["status"], utc(p["created_at"]), utc(p["purge_after"])) for p in projects]
    return print_rows(arguments, projects, ("NAME", "ID", "STATUS", "CREATED", "PURGED AFTER"), rows)


@over_admin
def _set_suspended(arguments: argparse.Namespace, client: AdminClient) -> int:
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
    with AdminClient.from_environment(environ) as client:
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
    with AdminClient.from_environment(environ) as client:
        project = client.post(f"{client.tenant_path(arguments.name)}/archive", json=body)
    text = f"tenant {project['name']} is deleted; its content is purged after {utc(project['purge_after'])}"
    return print_result(arguments, project, text)
