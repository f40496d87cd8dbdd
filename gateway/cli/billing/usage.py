"""`lorikeet usage` and `lorikeet costs`: used tokens and their cost, by day or hour."""

from __future__ import annotations

import argparse
import datetime
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.cli.billing.money import parse_instant
from gateway.cli.errors import WrongUsage
from gateway.cli.output import print_rows, utc
from gateway.cli.verbs import add_command, over_admin
from gateway.domain.billing.money import decimal_text

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs

DEFAULT_DAYS = 30


def register(verbs: Verbs) -> None:
    """Add `lorikeet usage` and `lorikeet costs` to the command line."""
    usage = add_command(
        verbs,
        "usage",
        _usage,
        "Show used tokens and requests, grouped by tenant and model unless --by is given.",
        groups=("project_id", "model"),
    )
    usage.add_argument(
        "--width", choices=("1m", "1h", "1d"), default="1d", help="length of time that each row sums up (default: 1d)"
    )
    usage.add_argument("--embeddings", action="store_true", help="show embeddings instead of text")
    usage.add_argument("--model", action="append", metavar="ID", help="show only this model; repeat the flag for more")
    costs = add_command(
        verbs, "costs", _costs, "Show costs by day, tenant and line item.", groups=("project_id", "line_item")
    )
    for parser, groups in (
        (usage, ("project_id", "user_id", "api_key_id", "model", "service_tier")),
        (costs, ("project_id", "api_key_id", "line_item")),
    ):
        parser.add_argument("--tenant", metavar="NAME", help="show only this tenant")
        parser.add_argument(
            "--since",
            type=parse_instant,
            metavar="TIME",
            help=f"start of the time shown (default: {DEFAULT_DAYS} days ago)",
        )
        parser.add_argument("--until", type=parse_instant, metavar="TIME", help="end of the time shown (default: now)")
        parser.add_argument("--by", action="append", choices=groups, help="field to group by; repeat the flag for more")


def _usage(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    if arguments.embeddings and "service_tier" in (arguments.by or ()):
        raise WrongUsage("--by service_tier: embeddings have no service tiers; leave out --embeddings or that field")
    kind = "embeddings" if arguments.embeddings else "completions"
    with AdminClient.from_environment(environ) as client:
        params: dict[str, Any] = {"bucket_width": arguments.width}
        if arguments.model:
            params["models[]"] = arguments.model
        buckets = _all_buckets(client, f"/usage/{kind}", arguments, params)
        names = _names(client)
    groups = tuple(arguments.by or arguments.groups)
    return print_rows(
        arguments,
        buckets,
        ("FROM", *_headings(groups), "REQUESTS", "INPUT", "CACHED", "OUTPUT"),
        [
            (
                utc(bucket["start_time"]),
                *_group_cells(result, groups, names),
                result["num_model_requests"],
                result["input_tokens"],
                result.get("input_cached_tokens", 0),
                result.get("output_tokens", 0),
            )
            for bucket in buckets
            for result in bucket["results"]
        ],
    )


@over_admin
def _costs(arguments: argparse.Namespace, client: AdminClient) -> int:
    buckets = _all_buckets(client, "/costs", arguments, {})
    names = _names(client)
    groups = tuple(arguments.by or arguments.groups)
    return print_rows(
        arguments,
        buckets,
        ("FROM", *_headings(groups), "AMOUNT"),
        [
            (
                utc(bucket["start_time"]),
                *_group_cells(result, groups, names),
                f"{decimal_text(result['amount']['value_nanos'])} {result['amount']['currency']}",
            )
            for bucket in buckets
            for result in bucket["results"]
        ],
    )


def _all_buckets(
    client: AdminClient, path: str, arguments: argparse.Namespace, params: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the buckets with usage, over all pages."""
    month_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=DEFAULT_DAYS)
    params["start_time"] = int(month_ago.timestamp()) if arguments.since is None else arguments.since
    if params["start_time"] >= (time.time() if arguments.until is None else arguments.until):
        raise WrongUsage(f"--since: the start must be before {'now' if arguments.until is None else '--until'}")
    if arguments.until is not None:
        params["end_time"] = arguments.until
    if arguments.tenant is not None:
        params["project_ids[]"] = client.tenant_path(arguments.tenant).removeprefix("/projects/")
    params["group_by[]"] = list(arguments.by or arguments.groups)
    buckets: list[dict[str, Any]] = []
    while True:
        page = client.get(path, **params)
        buckets += [bucket for bucket in page["data"] if bucket["results"]]
        if not page["has_more"]:
            return buckets
        params["page"] = page["next_page"]


def _names(client: AdminClient) -> dict[str, str]:
    return {project["id"]: project["name"] for project in client.get_all("/projects", include_archived="true")}


def _headings(groups: tuple[str, ...]) -> tuple[str, ...]:
    return tuple("TENANT" if group == "project_id" else group.removesuffix("_id").upper() for group in groups)


def _group_cells(result: dict[str, Any], groups: tuple[str, ...], names: Mapping[str, str]) -> list[str]:
    return [names.get(result[group], result[group]) for group in groups]
