"""`lorikeet demo traffic`: made-up requests and votes for the demo's experiment, to have a result to look at."""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any

from gateway.cli.errors import CommandFailed, WrongUsage
from gateway.cli.experiments.arguments import find_experiment
from gateway.cli.output import print_result
from gateway.cli.verbs import add_group, add_verb

if TYPE_CHECKING:
    from gateway.cli.chat.inference import InferenceClient
    from gateway.cli.output import Verbs

LIKED = (0.2, 0.8)
"""The share of replies that made-up users of the control, and of other arms, like.

They are far enough apart for `NUM_REQUESTS` units to prove the difference.
"""
NUM_REQUESTS = 100
PARALLEL = 8
"""The number of requests that are under way at a time, which the engine computes together."""
METRIC = "thumbs_up"
MAX_TOKENS = 4
VOTES_AT_ONCE = 20
VOTE_EVERY_S = 2.0
"""The most seconds that a vote waits to be sent with others: it has to come within its unit's outcome window."""
CLOSED_AFTER_S = 15
"""Seconds from the end of a unit's outcome window until its outcomes are in results, which wait for late usage."""
PROGRESS_EVERY = 20


def register(verbs: Verbs) -> None:
    """Add `lorikeet demo traffic` to the command line."""
    actions = add_group(verbs, "demo", "Try what the demo of `lorikeet serve` has.")
    traffic = add_verb(
        actions,
        "traffic",
        _traffic,
        "send made-up traffic to the demo's experiment",
        "Send made-up requests and votes of made-up users to the demo's experiment, which is started if it "
        "is a draft. The votes are drawn at random, more of them good for other arms than the control: the result says "
        "nothing about the adapters. The experiment is found and started with the operator's key, or with a key of the "
        "tenant in LORIKEET_ADMIN_KEY; requests and votes need a key of the tenant of their own. For the demo only.",
        url=None,
    )
    traffic.add_argument(
        "--requests", type=int, default=NUM_REQUESTS, metavar="NUMBER", help=f"requests (default: {NUM_REQUESTS})"
    )
    traffic.add_argument(
        "--parallel",
        type=int,
        default=PARALLEL,
        metavar="NUMBER",
        help=f"requests at a time (default: {PARALLEL})",
    )
    traffic.add_argument("--name", default="tone", metavar="NAME", help="name of the experiment (default: tone)")
    traffic.add_argument("--tenant", default="acme", metavar="NAME", help="name of the tenant (default: acme)")
    traffic.add_argument(
        "--key",
        metavar="KEY",
        help="API key of the tenant, with the scope inference, for requests and votes (default: LORIKEET_API_KEY, or "
        "the key of the demo)",
    )


def _traffic(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.chat.inference import InferenceClient, find_access
    from gateway.cli.client import AdminClient

    for flag in ("requests", "parallel"):
        if getattr(arguments, flag) < 1:
            raise WrongUsage(f"--{flag}: expected a number above 0")
    with InferenceClient(find_access(None, arguments.key, environ)) as client:
        with AdminClient.from_environment(environ) as admin:
            path, found = find_experiment(admin, arguments)
            if found["state"] == "draft":
                found = admin.post(f"{path}/start", json={})
        if found["state"] != "running":
            raise CommandFailed(
                f"the experiment {found['name']} is {found['state']}: only a running one gets traffic; "
                "--name names another"
            )
        num_good = _send(client, found, arguments)
    shown = {"experiment": found["name"], "num_requests": arguments.requests, "num_good": num_good}
    wait_s = found["analysis"]["outcome_window_seconds"] + CLOSED_AFTER_S
    text = (
        f"{arguments.requests} made-up users asked, {num_good} of them liked the reply. See the result in "
        f"{wait_s} s, in the dashboard or with "
        f"`lorikeet experiment results {found['name']} --tenant {arguments.tenant}`"
    )
    return print_result(arguments, shown, text)


def _send(client: InferenceClient, found: dict[str, Any], arguments: argparse.Namespace) -> int:
    """Send requests, some at a time, and lists of votes about their replies; return the number of good votes.

    found: the experiment as the admin API shows it.
    """
    rng, run = random.Random(), secrets.token_hex(4)  # noqa: S311 - votes of nobody are no secret
    control, messages = f'arm="{found["arms"][0]["name"]}"', [{"role": "user", "content": "Say hello."}]
    votes: list[dict[str, Any]] = []
    num_good, voted_s = 0, time.monotonic()

    def ask(number: int) -> tuple[str, str]:
        body = {"model": found["model"], "safety_identifier": f"demo-{run}-{number}", "max_tokens": MAX_TOKENS}
        reply, about_arm = client.chat_in_experiment(body | {"messages": messages})
        return reply["id"], about_arm

    with ThreadPoolExecutor(arguments.parallel) as pool:
        asked = [pool.submit(ask, number) for number in range(arguments.requests)]
        try:
            for number, each in enumerate(as_completed(asked), 1):
                reply_id, about_arm = each.result()
                is_good = rng.random() < LIKED[control not in about_arm]
                num_good += is_good
                votes.append({"completion_id": reply_id, "metric": METRIC, "value": is_good, "source": "code"})
                is_last = number == arguments.requests
                if is_last or len(votes) >= VOTES_AT_ONCE or time.monotonic() - voted_s >= VOTE_EVERY_S:
                    client.vote({"data": votes})
                    votes, voted_s = [], time.monotonic()
                if number % PROGRESS_EVERY == 0 and not arguments.json:
                    print(f"lorikeet: {number} of {arguments.requests} requests", file=sys.stderr)
        finally:
            pool.shutdown(cancel_futures=True)
    return num_good
