"""`lorikeet experiment results`, `health`, `preview` and others: an experiment's findings, and those to expect.

Every number has its interval, and a sentence says what may be concluded.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.cli.errors import CommandFailed
from gateway.cli.experiments.arguments import (
    add_name,
    add_tenant,
    find_experiment,
    parse_percent,
    past_time,
    warnings_of,
)
from gateway.cli.output import print_json, print_result, print_table
from gateway.cli.verbs import add_verb, over_admin
from gateway.domain.percent import percent_text

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs

KINDS = ("api_key", "endpoint", "stream", "service_tier", "gateway")


def register(actions: Verbs) -> None:
    """Add the verbs of `lorikeet experiment` that read findings to the command line."""
    results = add_verb(
        actions,
        "results",
        _results,
        "show what an experiment found",
        "Show what an experiment found: each metric with an interval that holds however often anybody "
        "looks, and a sentence that says what may be concluded.",
    )
    results.add_argument("--metric", metavar="METRIC", help="show only this metric")
    results.add_argument(
        "--as-of",
        type=past_time,
        metavar="TIME",
        help="show the latest look that was kept up to then: an age such as 30m, 2h or 3d, a time in UTC such as "
        "2026-12-01T09:30, or Unix seconds",
    )
    results.add_argument(
        "--by-age",
        action="store_true",
        help="show effects by days since units' first requests: whether they fade",
    )
    results.add_argument("--segment", choices=KINDS, help="show also each segment of this kind, as it is now")
    health = add_verb(
        actions,
        "health",
        _health,
        "show whether an experiment works as declared",
        "Show whether units are split as declared, treatments are delivered, and requests name units.",
    )
    for parser in (results, health):
        add_name(parser)
    preview = add_verb(
        actions,
        "preview",
        _preview,
        "show a unit's arm, or how long an experiment would take",
        "Show which arm a unit gets, or how many units and days an effect needs. Nothing is exposed.",
    )
    preview.add_argument("name", metavar="NAME", nargs="?", help="name of the experiment; needed with --unit")
    preview.add_argument("--unit", metavar="UNIT", help="unit whose arm to show")
    preview.add_argument("--metric", metavar="METRIC", help="metric whose effect is to be found")
    preview.add_argument(
        "--effect", type=parse_percent, metavar="PERCENT", help="effect, in percent of the metric's mean"
    )
    calibrate = add_verb(
        actions,
        "calibrate",
        _calibrate,
        "try experiments without effects on past traffic",
        "Split past units of a tenant at random, many times, and count how often that looks like an "
        "effect. Shows also the effects that 7, 14 and 28 days can find.",
    )
    calibrate.add_argument("metric", metavar="METRIC", help="metric of the ledger, such as cost_nanos, or of feedback")
    calibrate.add_argument("--runs", type=int, default=200, metavar="NUMBER", help="random splits (default: 200)")
    for parser in (preview, calibrate):
        parser.add_argument("--days", type=int, default=28, metavar="DAYS", help="days of past traffic (default: 28)")
        parser.add_argument(
            "--count",
            choices=("unit", "api_key", "request"),
            help="thing that counts as a unit of the past (default: units of earlier experiments, else requests)",
        )
    forget = add_verb(
        actions,
        "forget",
        _forget,
        "forget a unit",
        "Remove all that a tenant's experiments know of a unit, and correct their sums.",
    )
    forget.add_argument("unit", metavar="UNIT", help="unit as requests name it")
    for parser in (results, health, preview, calibrate, forget):
        add_tenant(parser)


def _results(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    wanted = {"metric": arguments.metric, "as_of": arguments.as_of, "segment": arguments.segment}
    with AdminClient.from_environment(environ) as client:
        path, _ = find_experiment(client, arguments)
        if arguments.by_age:
            if arguments.as_of is not None:
                raise CommandFailed("--by-age shows what is known now: leave out --as-of.")
            return _print_ages(
                client.get(f"{path}/ages", **({"metric": arguments.metric} if arguments.metric else {})), arguments
            )
        found = client.get(f"{path}/results", **{name: each for name, each in wanted.items() if each is not None})
    if arguments.json:
        print_json(found)
        return 0
    print_table(("ARM", "UNITS", "FULLY TREATED"), [_arm(arm) for arm in found["arms"]])
    rows = [*map(_comparison, found["comparisons"]), *map(_quantile, found["quantiles"])]
    if rows:
        print()
        print_table(("METRIC", "ROLE", "ARM", "CONTROL", "ARM'S", "DIFFERENCE", "INTERVAL", "PROVEN"), rows)
    if found["judged"]:
        print()
        print_table(
            ("BY PEOPLE AND A JUDGE", "ARM", "LABELLED", "JUDGED", "DIFFERENCE", "INTERVAL", "PEOPLE ALONE", "JUDGE"),
            [_judged_row(each) for each in found["judged"]],
        )
    if found["shadow"] is not None:
        print()
        _print_shadow(found["shadow"])
    for guardrail in found["guardrails"]:
        if guardrail["verdict"] == "harmed":
            print(guardrail["text"])
    for segment in found["segments"] or []:
        _print_segment(segment)
    print()
    print(found["conclusion"])
    return 0


def _print_ages(found: dict[str, Any], arguments: argparse.Namespace) -> int:
    if arguments.json:
        print_json(found)
        return 0
    rows = [(each["metric"], each["arm"], day["day"], *_effect(day)) for each in found["data"] for day in each["days"]]
    if not rows:
        print("Nothing yet: the outcome window has less than two days, or no unit's window is over.")
        return 0
    print_table(("METRIC", "ARM", "DAY", "DIFFERENCE", "INTERVAL"), rows)
    print()
    for each in found["data"]:
        if each["trend"] != "unclear":
            print(each["text"])
    return 0


def _print_shadow(shadow: dict[str, Any]) -> None:
    times = [shadow[name] for name in ("engine_ms", "ttft_ms", "latency_ms")]
    shown = ["" if each["p50"] is None else f"{each['p50']:.4g} / {each['p95']:.4g}" for each in times]
    counts = (shadow["requests"], shadow["errors"], shadow["prompt_tokens"], shadow["completion_tokens"])
    columns = ("SHADOW", "COPIES", "ERRORS", "PROMPT", "COMPLETION", "NANOS", "ENGINE MS", "TTFT MS", "LATENCY MS")
    print_table(columns, [(shadow["name"], *counts, shadow["cost_nanos"], *shown)])
    dropped = {name: num for name, num in shadow["outcomes"].items() if name not in ("answered", "failed")}
    if dropped:
        print("copies that did not run:", ", ".join(f"{num:,} {name}" for name, num in sorted(dropped.items())))


def _print_segment(segment: dict[str, Any]) -> None:
    split = segment["split"]
    fault = ": units are not split as declared" if split["is_srm"] else ""
    print(f"\n{split['kind']} {split['name'] or split['value']}{fault}")
    arms = [(arm["name"], arm["units"], f"{arm['expected_units']:,.0f}") for arm in split["arms"]]
    print_table(("ARM", "UNITS", "AS DECLARED"), arms)
    if segment["comparisons"]:
        rows = [(each[0], *each[2:]) for each in map(_comparison, segment["comparisons"])]
        print_table(("METRIC", "ARM", "CONTROL", "ARM'S", "DIFFERENCE", "INTERVAL", "PROVEN"), rows)


def _arm(arm: dict[str, Any]) -> tuple[object, ...]:
    return arm["name"], arm["units"], "" if arm["compliance"] is None else percent_text(arm["compliance"])


def _comparison(each: dict[str, Any]) -> tuple[object, ...]:
    effect, interval = _effect(each)
    control, treatment = f"{each['control']['mean']:.4g}", f"{each['treatment']['mean']:.4g}"
    proven = "not yet" if each["verdict"] == "unclear" else each["verdict"]
    return each["metric"], each["role"], each["arm"], control, treatment, effect, interval, proven


def _effect(each: dict[str, Any]) -> tuple[str, str]:
    """Return an effect and its interval in words, as parts of the control's mean where that is known not to be 0."""
    relative = each["relative_interval"]
    if relative is not None and relative["low"] is not None and relative["high"] is not None:
        effect = "" if each["relative_effect"] is None else percent_text(each["relative_effect"], is_signed=True)
        return effect, " to ".join(percent_text(relative[bound], is_signed=True) for bound in ("low", "high"))
    return f"{each['effect']:+.4g}", _span(each["interval"])


def _judged_row(each: dict[str, Any]) -> tuple[object, ...]:
    both = each["control"], each["treatment"]
    numbers = [" and ".join(f"{estimate[name]:,}" for estimate in both) for name in ("num_labelled", "num_judged")]
    by_judge = f"{each['effect_by_judge']:+.4g}"
    people = _span(each["interval_by_people"])
    return each["metric"], each["arm"], *numbers, f"{each['effect']:+.4g}", _span(each["interval"]), people, by_judge


def _quantile(each: dict[str, Any]) -> tuple[object, ...]:
    control, treatment = each["control"]["estimate"], each["treatment"]["estimate"]
    known = control is not None and treatment is not None
    shown = (f"{control:.4g}", f"{treatment:.4g}", f"{treatment - control:+.4g}") if known else ("", "", "")
    proven = "not yet" if each["verdict"] == "unclear" else each["verdict"]
    return each["metric"], each["role"], each["arm"], *shown, _span(each["difference"]), proven


def _span(bounds: dict[str, Any]) -> str:
    if bounds["low"] is None or bounds["high"] is None:
        return "nothing yet"
    return f"{bounds['low']:+.4g} to {bounds['high']:+.4g}"


@over_admin
def _health(arguments: argparse.Namespace, client: AdminClient) -> int:
    path, _ = find_experiment(client, arguments)
    found = client.get(f"{path}/health")
    if arguments.json:
        print_json(found)
        return 0
    rows = [
        (
            arm["name"],
            arm["units"],
            f"{arm['expected_units']:,.0f}",
            "" if arm["compliance"] is None else percent_text(arm["compliance"]),
        )
        for arm in found["arms"]
    ]
    print_table(("ARM", "UNITS", "AS DECLARED", "FULLY TREATED"), rows)
    for reason, number in sorted(found["not_analysed"].items()):
        print(f"{number:,} requests are not analysed: {reason}")
    for problem in found["problems"]:
        print(problem)
    print(f"the experiment is {found['status']}")
    return 0


def _preview(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    body: dict[str, Any] = {"unit": arguments.unit, "metric": arguments.metric, "past_days": arguments.days}
    body["past_units"] = arguments.count
    if arguments.effect is not None:
        body["relative_effect"] = arguments.effect / 100
    with AdminClient.from_environment(environ) as client:
        base = f"{client.tenant_path(arguments.tenant)}/experiments"
        if arguments.name is not None:
            body["experiment_id"] = find_experiment(client, arguments)[1]["id"]
        found = client.post(f"{base}/preview", json=body)
    sentences = []
    if found["assignment"]:
        sentences.append(f"the unit gets {found['assignment']['arm']} ({found['assignment']['reason']})")
    if found["size"]:
        sentences.append(found["size"]["text"])
    elif found["why_no_size"]:
        sentences.append(found["why_no_size"])
    return print_result(arguments, found, "\n".join(sentences) + warnings_of(found))


def _calibrate(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    body = {"metric": arguments.metric, "past_days": arguments.days, "runs": arguments.runs}
    body["past_units"] = arguments.count
    with AdminClient.from_environment(environ) as client:
        found = client.post(f"{client.tenant_path(arguments.tenant)}/experiments/calibrate", json=body)
    return print_result(arguments, found, found["text"])


@over_admin
def _forget(arguments: argparse.Namespace, client: AdminClient) -> int:
    path = f"{client.tenant_path(arguments.tenant)}/experiment_units/forget"
    found = client.post(path, json={"unit": arguments.unit})
    number = found["experiments"]
    return print_result(arguments, found, f"the unit is forgotten; {number} experiment{'s' * (number != 1)} knew it")
