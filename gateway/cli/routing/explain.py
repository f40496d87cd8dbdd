"""`lorikeet route explain`: the plan for a request to a model now, and the reasons for it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.cli.errors import CommandFailed
from gateway.cli.output import print_json, print_table

MAX_BODY_BYTES = 8 << 20
NANOS = 10**9


def add_request(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that describe the request to explain, and its sender."""
    parser.add_argument("model", metavar="MODEL", help="model of the request: a route, or any other model")
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument("--key", metavar="ID", help="id of the API key that the request comes with")
    whose.add_argument("--tenant", metavar="NAME", help="name of the tenant, for a request of any of its keys")
    parser.add_argument("--body", metavar="FILE", help="file with the body of the request as JSON; - reads stdin")
    parser.add_argument("--request-id", metavar="ID", help="id of a past request whose random choices to repeat")
    parser.add_argument("--user", metavar="USER", help="end user that the request names")
    parser.add_argument(
        "--metadata", metavar="KEY=VALUE", action="append", default=[], help="metadata of the request; repeat for more"
    )
    parser.add_argument("--prompts", metavar="N", type=int, default=1, help="number of prompts")
    parser.add_argument("--prompt-tokens", metavar="N", type=int, default=0, help="tokens of the prompt")
    parser.add_argument("--max-tokens", metavar="N", type=int, default=256, help="most tokens of each completion")
    parser.add_argument("--n", metavar="N", type=int, default=1, help="number of completions")
    parser.add_argument("--tools", action="store_true", help="the request brings tools")
    parser.add_argument("--service-tier", metavar="TIER", default="default", help="service tier of the request")
    parser.add_argument("--stream", action="store_true", help="the reply is streamed")
    parser.add_argument("--time", metavar="HH:MM", help="time of day in UTC instead of now")
    parser.add_argument("--version", metavar="N", type=int, help="version of the route instead of the one that answers")


def explain(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Explain a request to a model."""
    from gateway.cli.client import AdminClient

    request = _request(arguments)
    with AdminClient.from_environment(environ) as client:
        if arguments.key is not None:
            request["api_key_id"] = arguments.key
            path = client.key_path(arguments.key).partition("/api_keys/")[0]
        else:
            path = client.tenant_path(arguments.tenant)
        plan = client.post(f"{path}/plans/explain", json=request)
    if arguments.json:
        print_json(plan)
    else:
        _print(plan)
    return 0


def _print(plan: Mapping[str, Any]) -> None:
    version = f"@{plan['version']}" if plan["version"] is not None else ""
    kind = {"shared_route": "route for all tenants"}.get(plan["kind"], plan["kind"])
    print(f"{kind} {plan['model']}{version}, request {plan['request_id']}, about {plan['prompt_tokens']} prompt tokens")
    if not plan["is_allowed"]:
        print("the key may not use this model: the request is told that there is none")
    for edge in plan["trace"]:
        print(f"  {edge['path']}: {edge['reason']}")
    targets = {each["target"]: each for each in plan["targets"]}
    rows = [
        (
            number,
            step["target"],
            _state(targets[step["target"]]),
            _money(targets[step["target"]]["input_nanos"]),
            _money(targets[step["target"]]["output_nanos"]),
            step["first_token_ms"],
            _further_text(step),
            ", ".join(f"{kind} -> {at}" for kind, at in step["then"].items()),
        )
        for number, step in enumerate(plan["steps"])
    ]
    header = ("STEP", "TARGET", "STATE", "INPUT/M", "OUTPUT/M", "FIRST TOKEN MS", "ALSO", "THEN")
    print_table(header, rows)
    left = [each for each in targets.values() if each["target"] not in {step["target"] for step in plan["steps"]}]
    for each in left:
        print(f"not tried: {each['target']} ({_state(each)})")


def _state(target: Mapping[str, Any]) -> str:
    if not target["is_usable"]:
        return "no such model"
    return "ready" if target["is_ready"] else "not ready"


def _money(nanos: int) -> str:
    """Return the price of a million tokens in words, in the currency of the price book."""
    return f"{nanos / NANOS:.4f}".rstrip("0").rstrip(".")


def _further_text(step: Mapping[str, Any]) -> str:
    """Return in words what a step does besides trying its target."""
    plan = []
    if step["wait_ms"]:
        plan.append(f"after {step['wait_ms']} ms")
    if step["hedge_ms"] is not None:
        plan.append(f"another replica after {step['hedge_ms']:.0f} ms")
    if step["has_check"]:
        plan.append("answer is checked")
    return ", ".join([*plan, *(f"copy to {copy['target']}" for copy in step["copies"])])


def _request(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the body that asks for an explanation.

    Raises CommandFailed: when metadata does not have the form KEY=VALUE, or the file of the body holds no JSON object.
    """
    pairs = [text.partition("=") for text in arguments.metadata]
    if any(not (key and equals) for key, equals, _ in pairs):
        raise CommandFailed("--metadata takes KEY=VALUE, such as plan=free")
    given = {
        "request_id": arguments.request_id,
        "user": arguments.user,
        "time": arguments.time,
        "version": arguments.version,
        "body": None if arguments.body is None else _body(arguments.body),
    }
    return {key: value for key, value in given.items() if value is not None} | {
        "model": arguments.model,
        "metadata": {key: value for key, _, value in pairs},
        "num_prompts": arguments.prompts,
        "prompt_tokens": arguments.prompt_tokens,
        "max_tokens": arguments.max_tokens,
        "n": arguments.n,
        "tools": arguments.tools,
        "service_tier": arguments.service_tier,
        "stream": arguments.stream,
    }


def _body(file: str) -> dict[str, Any]:
    """Return the body of a request in a file.

    Raises CommandFailed: when the file holds no JSON object.
    """
    body = read_object(file, MAX_BODY_BYTES)
    if body is None:
        raise CommandFailed(f"{file} holds no body of a request: it is a JSON object")
    return body


def read_object(file: str, max_bytes: int) -> dict[str, Any] | None:
    """Return the JSON object in a file, or on standard input where that is "-"; None for JSON that is no object.

    Raises CommandFailed: when the file cannot be read or is no JSON.
    """
    try:
        with sys.stdin.buffer if file == "-" else Path(file).open("rb") as opened:
            text = opened.read(max_bytes)
        found = json.loads(text)
    except OSError as error:
        raise CommandFailed(f"{file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CommandFailed(f"{file} is not JSON: {error}") from None
    return found if isinstance(found, dict) else None
