"""`lorikeet experiment`: a tenant's A/B tests, from the draft to the decision. `findings` shows their results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.cli.errors import CommandFailed, WrongUsage
from gateway.cli.experiments import export, findings, objects, verify
from gateway.cli.experiments.arguments import (
    add_name,
    add_tenant,
    find_experiment,
    parse_part,
    parse_share,
    warnings_of,
)
from gateway.cli.output import print_json, print_result, print_rows, print_table, utc
from gateway.cli.verbs import add_group, add_verb, over_admin
from gateway.domain.percent import percent_text

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs

PARTS = 10_000
UNTIL = {"paused": "it is started again", "stopped": "you `decide` for an arm"}
"""For each state in which units get no arm, the event that ends the state, in words."""


def register(verbs: Verbs) -> None:
    """Add `lorikeet experiment` to the command line."""
    actions = add_group(
        verbs,
        "experiment",
        "Run A/B tests of a tenant. An experiment splits end users between models, prompts or settings, "
        "and its numbers hold however often anybody looks.",
    )
    _register_create(actions)
    _register_change(actions)
    listing = add_verb(actions, "list", _list, "list experiments", "List a tenant's experiments.")
    listing.add_argument(
        "--state",
        choices=("draft", "running", "paused", "stopped", "decided", "archived"),
        help="list only experiments in this state",
    )
    show = add_verb(actions, "show", _show, "show an experiment", "Show an experiment with all its arms.")
    lives = {
        "start": "Start a draft, or let a paused experiment go on. Each arm keeps the version that its model has now.",
        "pause": "Give everybody the control until the experiment is started again.",
        "stop": "Give everybody the control for good. Outcomes still come within their window.",
        "archive": "Put a decided experiment away. Its results are kept.",
    }
    named = [show]
    for verb, text in lives.items():
        named.append(add_verb(actions, verb, _move, f"{verb} an experiment", text, verb=verb))
    decide = add_verb(
        actions,
        "decide",
        _decide,
        "choose an arm of a stopped experiment",
        "Choose an arm of a stopped experiment. The model string of the experiment becomes an alias of "
        "what the arm serves.",
    )
    named.append(decide)
    delete = add_verb(actions, "delete", _delete, "delete a draft", "Delete an experiment that never started.")
    named.append(delete)
    for parser in named:
        add_name(parser)
    decide.add_argument("arm", metavar="ARM", help="name of the arm that everybody gets")
    for parser in (listing, *named):
        add_tenant(parser)
    findings.register(actions)
    verify.register(actions)
    export.register(actions)
    objects.register(actions)


def _register_create(actions: Verbs) -> None:
    create = add_verb(
        actions,
        "create",
        _create,
        "create an experiment as a draft",
        "Create an experiment as a draft, from flags or from a JSON file. Nothing is served before it is started.",
    )
    create.add_argument("name", metavar="NAME", nargs="?", help="name of the experiment; with --file as in the file")
    create.add_argument("--file", metavar="FILE", help="JSON file with the whole definition; - reads standard input")
    create.add_argument("--model", metavar="NAME", help="model id by which requests name the experiment")
    create.add_argument(
        "--unit",
        default="safety_identifier",
        metavar="SOURCE",
        help="field of a request that names the end user: safety_identifier, user, prompt_cache_key, x-lorikeet-unit, "
        "api_key or metadata.KEY (default: safety_identifier)",
    )
    create.add_argument(
        "--arm",
        action="append",
        default=[],
        metavar="NAME=MODEL",
        help="arm and the model that it serves; the first arm is the control. Repeat for each arm",
    )
    create.add_argument(
        "--weight",
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="weight of an arm, over the sum of all weights (default: 1 each)",
    )
    create.add_argument(
        "--primary",
        action="append",
        default=[],
        metavar="METRIC:GOAL",
        help="metric that decides, with its goal, such as cost_nanos:decrease. Repeat for more",
    )
    create.add_argument(
        "--guardrail",
        action="append",
        default=[],
        metavar="METRIC[:ACTION]",
        help="metric that must not become worse, with pause or alert, such as error_rate:pause. Repeat for more",
    )
    create.add_argument(
        "--coverage",
        type=parse_part,
        default=PARTS,
        metavar="PERCENT",
        help="percentage of the units that take part (default: 100)",
    )
    create.add_argument(
        "--shadow",
        metavar="NAME=MODEL",
        help="arm that gets copies of requests and whose replies nobody gets; each copy is billed",
    )
    create.add_argument(
        "--shadow-share",
        type=parse_share,
        default=PARTS,
        metavar="PERCENT",
        help="percentage of requests that the shadow arm gets (default: 100)",
    )
    create.add_argument(
        "--layer", metavar="NAME", help="name of a layer: experiments of one layer have no unit in common"
    )
    create.add_argument("--holdout", metavar="NAME", help="holdout, whose units take part in nothing")
    create.add_argument("--window-days", type=float, metavar="DAYS", help="days in which a unit's outcomes count")
    create.add_argument("--min-days", type=int, metavar="DAYS", help="days before anything is to be decided")
    add_tenant(create)


def _register_change(actions: Verbs) -> None:
    change = add_verb(
        actions,
        "change",
        _change,
        "change an experiment",
        "Change an experiment. After the start coverage may grow, weights change for units that were not "
        "exposed yet, and an arm end.",
    )
    add_name(change)
    change.add_argument("--file", metavar="FILE", help="JSON file with the fields to change; - reads standard input")
    change.add_argument("--coverage", type=parse_part, metavar="PERCENT", help="part of the units that take part")
    change.add_argument(
        "--weight", action="append", default=[], metavar="NAME=NUMBER", help="new weight of an arm. Repeat for more"
    )
    change.add_argument(
        "--shadow-share", type=parse_share, metavar="PERCENT", help="part of the requests that the shadow arm gets"
    )
    change.add_argument("--end-arm", action="append", default=[], metavar="NAME", help="arm to end. Repeat for more")
    add_tenant(change)


def _create(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    body = _read_file(arguments.file) if arguments.file else _body_of(arguments)
    if arguments.file and arguments.name:
        body["name"] = arguments.name
    with AdminClient.from_environment(environ) as client:
        made = client.post(f"{client.tenant_path(arguments.tenant)}/experiments", json=body)
    text = f"experiment {made['name']} is a draft: `lorikeet experiment start {made['name']}` starts it"
    return print_result(arguments, made, text + warnings_of(made))


def _body_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the definition that flags make.

    Raises WrongUsage: when a flag is missing, or one names an arm that is not given.
    """
    if not (arguments.name and arguments.model and arguments.primary) or len(arguments.arm) < 2:
        raise WrongUsage("give a name, --model, two or more --arm, and --primary; or --file")
    weights = dict(_pair("--weight", each) for each in arguments.weight)
    arms = [_pair("--arm", each) for each in arguments.arm]
    if unknown := weights.keys() - {name for name, _ in arms}:
        raise WrongUsage(f"--weight: there is no arm named '{min(unknown)}'")
    body: dict[str, Any] = {
        "name": arguments.name,
        "model": arguments.model,
        "unit": {"from": arguments.unit},
        "arms": [
            {"name": name, "weight": _number("--weight", weights.get(name, "1")), "target": {"model": model}}
            for name, model in arms
        ],
        "metrics": {
            "primary": [_metric("--primary", each, "goal") for each in arguments.primary],
            "guardrails": [_metric("--guardrail", each, "action") for each in arguments.guardrail],
        },
        "coverage": arguments.coverage,
    }
    if arguments.shadow is not None:
        name, model = _pair("--shadow", arguments.shadow)
        body["shadow"] = {"name": name, "target": {"model": model}, "share": arguments.shadow_share}
    body |= {name: value for name in ("layer", "holdout") if (value := getattr(arguments, name)) is not None}
    analysis: dict[str, Any] = {}
    if arguments.window_days is not None:
        analysis["outcome_window_seconds"] = round(arguments.window_days * 86_400)
    if arguments.min_days is not None:
        analysis["min_days"] = arguments.min_days
    return body | ({"analysis": analysis} if analysis else {})


def _change(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    body = _read_file(arguments.file) if arguments.file else {}
    if arguments.coverage is not None:
        body["coverage"] = arguments.coverage
    with AdminClient.from_environment(environ) as client:
        path, found = find_experiment(client, arguments)
        if arguments.weight or arguments.end_arm:
            weights = dict(_pair("--weight", each) for each in arguments.weight)
            body |= {"arms": _arms(found, weights, arguments.end_arm), "version": found["version"]}
        if arguments.shadow_share is not None:
            if found["shadow"] is None:
                raise WrongUsage("--shadow-share: the experiment has no shadow arm")
            shadow = {name: found["shadow"][name] for name in ("name", "target")}
            shadow["share"] = arguments.shadow_share
            body |= {"shadow": shadow, "version": found["version"]}
        if not body:
            raise WrongUsage("give --coverage, --weight, --end-arm, --shadow-share or --file")
        after = client.post(path, json=body)
    text = f"experiment {after['name']} is at version {after['version']}"
    if after["next_weights"]:
        text += "; the new weights hold in some seconds, for units that were not exposed yet"
    return print_result(arguments, after, text + warnings_of(after))


def _arms(found: dict[str, Any], weights: dict[str, str], ended: list[str]) -> list[dict[str, Any]]:
    """Return all arms of an experiment, with new weights for some and an end for others, by their names.

    Raises WrongUsage: when the experiment has no arm of a name, or a weight is no number.
    """
    names = {arm["name"] for arm in found["arms"]}
    if unknown := ({*weights, *ended}) - names:
        raise WrongUsage(f"there is no arm named '{min(unknown)}'; the arms are {', '.join(sorted(names))}")
    arms = []
    for arm in found["arms"]:
        name, is_over = arm["name"], arm["ended"] or arm["name"] in ended
        weight = 0 if is_over else _number("--weight", weights.get(name, str(arm["weight"])))
        arms.append({"name": name, "weight": weight, "target": arm["target"], "ended": is_over})
    return arms


def _list(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    only = {"state": arguments.state} if arguments.state else {}
    with AdminClient.from_environment(environ) as client:
        found = client.get_all(f"{client.tenant_path(arguments.tenant)}/experiments", **only)
    rows = [
        (
            each["name"],
            each["state"],
            each["model"],
            ", ".join(arm["name"] for arm in each["arms"]),
            f"{each['coverage'] / 100:g} %",
            each["days"],
            utc(each["started_at"]),
        )
        for each in found
    ]
    return print_rows(arguments, found, ("NAME", "STATE", "MODEL", "ARMS", "COVERAGE", "DAYS", "STARTED"), rows)


@over_admin
def _show(arguments: argparse.Namespace, client: AdminClient) -> int:
    path, _ = find_experiment(client, arguments)
    found = client.get(path)
    if arguments.json:
        print_json(found)
        return 0
    print(f"{found['name']} is {found['state']}; {_answer(found)}")
    print(f"unit: {found['unit']['from']}; coverage: {found['coverage'] / 100:g} %; layer: {found['layer']}")
    if found["why"]:
        print(f"paused itself: {found['why']['text']}")
    rows = [
        (
            arm["name"],
            percent_text(arm["share"]),
            arm["serves"]["model"] if arm["serves"] else arm["target"]["model"],
            "ended" if arm["ended"] else "chosen" if arm["name"] == found["decided_arm"] else "",
        )
        for arm in found["arms"]
    ]
    if found["shadow"] is not None:
        shadow = found["shadow"]
        model = shadow["serves"]["model"] if shadow["serves"] else shadow["target"]["model"]
        rows.append((shadow["name"], f"{percent_text(shadow['share'] / PARTS)} of requests", model, "shadow"))
    print_table(("ARM", "SHARE", "MODEL", ""), rows)
    print(f"possible now: {', '.join(found['possible']) or 'nothing'}{warnings_of(found)}")
    return 0


def _answer(found: dict[str, Any]) -> str:
    """Return the target of an experiment's model string in words."""
    if found["decided_arm"] is not None:
        chosen = next(arm for arm in found["arms"] if arm["name"] == found["decided_arm"])
        return f"{found['model']} became an alias of {chosen['serves']['model']}"
    if found["state"] in UNTIL:
        return f"{found['model']} is {found['arms'][0]['serves']['model']} for everybody until {UNTIL[found['state']]}"
    return f"requests name it as {found['model']}"


@over_admin
def _move(arguments: argparse.Namespace, client: AdminClient) -> int:
    path, _ = find_experiment(client, arguments)
    after = client.post(f"{path}/{arguments.verb}", json={})
    text = f"experiment {after['name']} is {after['state']}"
    if after["state"] in UNTIL:
        control = after["arms"][0]["serves"]["model"]
        text += f": {after['model']} is {control}, the control, for everybody until {UNTIL[after['state']]}"
    return print_result(arguments, after, text + warnings_of(after))


@over_admin
def _decide(arguments: argparse.Namespace, client: AdminClient) -> int:
    path, _ = find_experiment(client, arguments)
    after = client.post(f"{path}/decide", json={"arm": arguments.arm})
    chosen = next(arm["serves"]["model"] for arm in after["arms"] if arm["name"] == after["decided_arm"])
    return print_result(arguments, after, f"{after['model']} is {chosen} for everybody from now on")


@over_admin
def _delete(arguments: argparse.Namespace, client: AdminClient) -> int:
    path, found = find_experiment(client, arguments)
    gone = client.delete(path)
    return print_result(arguments, gone, f"the draft {found['name']} is deleted")


def _read_file(name: str) -> dict[str, Any]:
    """Return the JSON object of a file.

    Raises CommandFailed: when the file cannot be read, or holds no JSON object.
    """
    import json
    from pathlib import Path

    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        body = json.loads(text)
    except OSError as error:
        raise CommandFailed(f"{name}: {error.strerror}") from None
    except ValueError as error:
        raise CommandFailed(f"{name}: not JSON in UTF-8: {error}") from None
    if not isinstance(body, dict):
        raise CommandFailed(f"{name}: expected a JSON object")
    return body


def _pair(flag: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise WrongUsage(f"{flag}: expected NAME=VALUE, not '{text}'")
    return name, value


def _number(flag: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 7):
        raise WrongUsage(f"{flag}: expected a whole number, not '{text}'")
    return int(text)


def _metric(flag: str, text: str, field: str) -> dict[str, str]:
    metric, colon, value = text.partition(":")
    if field == "goal" and not value:
        raise WrongUsage(f"{flag}: expected METRIC:increase or METRIC:decrease, not '{text}'")
    return {"metric": metric} | ({field: value} if colon else {})
