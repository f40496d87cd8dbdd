"""`lorikeet demo traffic`: made-up requests and votes for the demo's experiment, to have a result to look at."""

from __future__ import annotations

import argparse
import random
import secrets
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.errors import CommandFailed, WrongUsage
from gateway.cli.experiments.parts import find_experiment
from gateway.cli.output import add_json_flag, print_result

if TYPE_CHECKING:
    from gateway.cli.output import Verbs

LIKED = (0.35, 0.75)
"""How often made-up users of the control, and of other arms, say that they like a reply."""
METRIC = "thumbs_up"
MAX_TOKENS = 8
PROGRESS_EVERY = 20


def register(verbs: Verbs) -> None:
    demo = verbs.add_parser("demo", help="try the demo", description="Try what the demo of `lorikeet serve` has.")
    actions = demo.add_subparsers(metavar="ACTION", required=True)
    traffic = actions.add_parser(
        "traffic",
        help="send made-up traffic to the demo's experiment",
        description="Send made-up requests and votes of made-up users to the demo's experiment, which is started if it "
        "is a draft. The votes are drawn at random, more of them good for other arms than the control: the result says "
        "nothing about the adapters. For the demo only.",
    )
    traffic.add_argument("--requests", type=int, default=300, metavar="NUMBER", help="requests (default: 300)")
    traffic.add_argument("--name", default="tone", metavar="NAME", help="name of the experiment (default: tone)")
    traffic.add_argument("--tenant", default="acme", metavar="NAME", help="name of the tenant (default: acme)")
    traffic.add_argument("--key", metavar="KEY", help="API key (default: LORIKEET_API_KEY, or the key of the demo)")
    add_json_flag(traffic)
    traffic.set_defaults(run=_traffic, url=None)


def _traffic(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.chat.inference import InferenceClient, find_access
    from gateway.cli.client import AdminClient

    if arguments.requests < 1:
        raise WrongUsage("--requests: expected a number above 0")
    with AdminClient.of(environ) as admin:
        path, found = find_experiment(admin, arguments)
        if found["state"] == "draft":
            found = admin.post(f"{path}/start", json={})
        if found["state"] != "running":
            raise CommandFailed(f"the experiment {found['name']} is {found['state']}: only a running one gets traffic")
    rng, run = random.Random(), secrets.token_hex(4)  # noqa: S311 - votes of nobody are no secret
    control, good = f'arm="{found["arms"][0]["name"]}"', 0
    with InferenceClient(find_access(None, arguments.key, environ)) as client:
        for number in range(1, arguments.requests + 1):
            unit = f"demo-{run}-{number}"
            asked = {"model": found["model"], "safety_identifier": unit, "max_tokens": MAX_TOKENS}
            reply, about_arm = client.chat_in_experiment(
                asked | {"messages": [{"role": "user", "content": "Say hello."}]}
            )
            is_good = rng.random() < LIKED[control not in about_arm]
            client.vote({"completion_id": reply["id"], "metric": METRIC, "value": is_good, "source": "code"})
            good += is_good
            if number % PROGRESS_EVERY == 0 and not arguments.json:
                print(f"lorikeet: {number} of {arguments.requests} requests", file=sys.stderr)
    shown = {"experiment": found["name"], "num_requests": arguments.requests, "num_good": good}
    text = (
        f"{arguments.requests} made-up users asked, {good} of them liked the reply. See the result in "
        f"{found['analysis']['outcome_window_seconds']} s, in the dashboard or with "
        f"`lorikeet experiment results {found['name']} --tenant {arguments.tenant}`"
    )
    return print_result(arguments, shown, text)
