"""Feedback metrics of projects. Numbers are stored in millionths."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from gateway.domain.experiments.definition import Goal
from gateway.domain.experiments.effects import Kind

if TYPE_CHECKING:
    import asyncpg

    from gateway.db.pool import Connection

_LABELS = msgspec.json.Decoder(dict[str, int])

MetricType = Literal["boolean", "number", "label"]


class MetricRow(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of a project."""

    name: str
    type: MetricType
    goal: Goal
    """The direction in which the metric gets better."""
    kind: Kind
    least: int | None
    """The smallest value of a number, in millionths."""
    most: int | None
    labels: Mapping[str, int] | None
    """The value of each label, in millionths."""
    description: str
    created_at: datetime.datetime


_LIST = """
    SELECT name, type, goal, kind, least, most, labels, description, created_at FROM feedback_metrics
    WHERE project_id = $1 AND ($2::text IS NULL OR name = $2) ORDER BY created_at, name
"""


async def list_metrics(conn: Connection, project_id: str) -> list[MetricRow]:
    """Return the feedback metrics of a project, oldest first."""
    return [_metric(row) for row in await conn.fetch(_LIST, project_id, None)]


async def find_metric(conn: Connection, project_id: str, name: str) -> MetricRow | None:
    """Return the project's feedback metric of this name."""
    row = await conn.fetchrow(_LIST, project_id, name)
    return _metric(row) if row else None


_CREATE = """
    INSERT INTO feedback_metrics (project_id, name, type, goal, kind, least, most, labels, description)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING RETURNING name
"""


async def create_metric(
    conn: Connection,
    project_id: str,
    name: str,
    *,
    type: MetricType,
    goal: Goal,
    kind: Kind,
    least: int | None = None,
    most: int | None = None,
    labels: Mapping[str, int] | None = None,
    description: str = "",
) -> bool:
    """Make a feedback metric; return False where the project has one of this name.

    least, most: the bounds of its values, and labels: the values that words stand for, all in millionths.
    """
    shown = None if labels is None else msgspec.json.encode(labels).decode()
    made = await conn.fetchval(_CREATE, project_id, name, type, goal, kind, least, most, shown, description)
    return made is not None


_USED = """
    SELECT name FROM experiments
    WHERE project_id = $1 AND jsonb_path_query_array(definition,
        '$.metrics.*[*]') @> ANY (ARRAY[jsonb_build_array($2::text),
                                        jsonb_build_array(jsonb_build_object('metric', $2::text))])
    ORDER BY name LIMIT 1
"""
_VOTED = "SELECT EXISTS (SELECT FROM feedback WHERE project_id = $1 AND metric = $2)"
_DELETE = "DELETE FROM feedback_metrics WHERE project_id = $1 AND name = $2"


async def user_of_metric(conn: Connection, project_id: str, name: str) -> str | None:
    """Return the name of an experiment that names the metric, a draft or an archived one included; None without any."""
    experiment: str | None = await conn.fetchval(_USED, project_id, name)
    return experiment


async def has_votes(conn: Connection, project_id: str, name: str) -> bool:
    """Tell whether there is feedback about the metric."""
    return bool(await conn.fetchval(_VOTED, project_id, name))


async def delete_metric(conn: Connection, project_id: str, name: str) -> None:
    """Remove a feedback metric that nothing names."""
    await conn.execute(_DELETE, project_id, name)


def _metric(row: asyncpg.Record) -> MetricRow:
    fields = dict(row)
    labels = fields.pop("labels")
    return MetricRow(**fields, labels=_LABELS.decode(labels) if labels else None)
