"""Alerts, and the YAML of rules that Prometheus reads. Knows nothing of particular alerts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

RUNBOOKS = "https://github.com/lorikeet-serving/lorikeet/blob/main/deploy/runbooks"

_DURATION = re.compile(r"<(\d+)([smhd])>")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Record(NamedTuple):
    """A recording rule: what `expression` gives is stored as the series `name`."""

    name: str
    expression: str


class Alert(NamedTuple):
    """An alerting rule. Durations in `expression` and `lasts` are written as <5m>, so that a drill can shorten them.

    lasts: how long the expression has to hold before the alert fires. summary: one sentence for the person who is
    woken; it may use Prometheus' templates. A page wakes somebody at night, a ticket waits for the next morning.
    window: a label that tells alerts of one name apart, if there are several.
    """

    name: str
    expression: str
    severity: Literal["page", "ticket"]
    summary: str
    lasts: str = "<0s>"
    window: str = ""


class Group(NamedTuple):
    """Rules that Prometheus evaluates together, one after the other."""

    name: str
    rules: Sequence[Record | Alert]


def shortened(text: str, divisor: int) -> str:
    """Return text with its durations as Prometheus reads them, each divided by `divisor`, at least one second."""

    def in_seconds(found: re.Match[str]) -> str:
        num, unit = int(found[1]), found[2]
        if divisor == 1:
            return f"{num}{unit}"
        return f"{max(1, num * _UNIT_S[unit] // divisor) if num else 0}s"

    return _DURATION.sub(in_seconds, text)


def rendered(groups: Sequence[Group], divisor: int = 1) -> str:
    """Return a file of rules in Prometheus' format. divisor: what all durations are divided by, for drills."""
    return "groups:\n" + "".join(line + "\n" for group in groups for line in _group(group, divisor))


def _group(group: Group, divisor: int) -> Iterator[str]:
    yield f"  - name: {group.name}"
    if divisor > 1:
        yield "    interval: 1s"
    yield "    rules:"
    for rule in group.rules:
        kind = "record" if isinstance(rule, Record) else "alert"
        yield f"      - {kind}: {rule.name}"
        yield "        expr: |"
        for line in shortened(rule.expression, divisor).strip().splitlines():
            yield f"          {line.strip()}"
        if isinstance(rule, Alert):
            yield f"        for: {shortened(rule.lasts, divisor)}"
            window = f", window: {rule.window}" if rule.window else ""
            yield f"        labels: {{severity: {rule.severity}{window}}}"
            yield "        annotations:"
            yield f"          summary: {json.dumps(rule.summary)}"
            yield f"          runbook_url: {RUNBOOKS}/{rule.name}.md"
