"""Panels and dashboards, and the JSON that Grafana imports. Knows nothing of particular dashboards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

SCHEMA_VERSION = 39
"""Grafana's version of the format, of Grafana 11; newer Grafanas convert such files."""
WIDTH, HEIGHT = 24, 8
"""The columns of a dashboard, and the rows of a panel."""

Unit = Literal["short", "reqps", "s", "percentunit", "bytes", "cps"]
"""Grafana's name of a unit; cps is a count each second."""


class Query(NamedTuple):
    """A query of Prometheus, and the legend of what it gives, in Grafana's notation."""

    expression: str
    legend: str = ""


class Panel(NamedTuple):
    """A graph over time, or with `kind` "stat" the last value.

    about: what a person should read in it.
    """

    title: str
    queries: Sequence[Query]
    unit: Unit
    about: str
    kind: Literal["timeseries", "stat"] = "timeseries"
    width: int = 12


class Variable(NamedTuple):
    """A choice at the top of a dashboard: the values of a label of a metric."""

    name: str
    metric: str
    label: str


class Board(NamedTuple):
    """A dashboard. name: the name of its file, and the end of its stable uid."""

    name: str
    title: str
    about: str
    panels: Sequence[Panel]
    variables: Sequence[Variable] = ()


def quantiles(metric: str, by: str, matchers: str = "", *shares: float) -> list[Query]:
    """Return the quantiles of a histogram, one query for each share.

    by: the label that keeps series apart. matchers: the matchers of labels, in braces; "": none. shares: between 0 and
    1, such as 0.5.
    """
    return [
        Query(
            f"histogram_quantile({share}, sum by (le, {by}) (rate({metric}_bucket{matchers}[$__rate_interval])))",
            f"{{{{{by}}}}} p{share * 100:g}",
        )
        for share in shares or (0.5, 0.95)
    ]


def rate(metric: str, by: str, matchers: str = "") -> Query:
    """Return the rate of a counter, by a label.

    by: the label that keeps series apart. matchers: as for `quantiles`.
    """
    return Query(f"sum by ({by}) (rate({metric}{matchers}[$__rate_interval]))", f"{{{{{by}}}}}")


def rendered(board: Board) -> str:
    """Return the JSON of a dashboard."""
    return json.dumps(
        {
            "uid": f"lorikeet-{board.name}",
            "title": f"Lorikeet: {board.title}",
            "description": board.about,
            "tags": ["lorikeet"],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": "now-3h", "to": "now"},
            "timezone": "",
            "templating": {"list": [_datasource(), *(_variable(each) for each in board.variables)]},
            "panels": list(_panels(board.panels)),
        },
        indent=1,
        ensure_ascii=False,
    )


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "hide": 0}


def _variable(variable: Variable) -> dict[str, Any]:
    query = f"label_values({variable.metric}, {variable.label})"
    return {
        "name": variable.name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": query, "refId": variable.name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels(panels: Sequence[Panel]) -> Iterator[dict[str, Any]]:
    x = y = 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > WIDTH:
            x, y = 0, y + HEIGHT
        yield {
            "id": number,
            "type": panel.kind,
            "title": panel.title,
            "description": panel.about,
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "gridPos": {"x": x, "y": y, "w": panel.width, "h": HEIGHT},
            "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
            "targets": [
                {"refId": chr(ord("A") + at), "expr": each.expression, "legendFormat": each.legend or "__auto"}
                for at, each in enumerate(panel.queries)
            ],
        }
        x += panel.width
