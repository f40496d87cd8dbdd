"""The export `analysis` as JSON: all data that an experiment's results are made of, and each stored look.

`recompute` is a script that computes the results anew from this file alone.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.db.experiments.looks import list_looks
from gateway.db.experiments.scopes import Scope
from gateway.db.experiments.segments import Place, load_segments
from gateway.db.experiments.sums.reading import load_reasons
from gateway.db.experiments.sums.whole import load_total
from gateway.domain.experiments import allocation
from gateway.domain.experiments.assignment import Split
from gateway.domain.experiments.definition import Experiment
from gateway.domain.experiments.metrics import read_metric
from gateway.domain.experiments.sums import Sums
from gateway.domain.experiments.units import IN_EVERY_UNIT

if TYPE_CHECKING:
    from gateway.db.pool import Connection

FORMULAS_VERSION = 1
"""The version of the formulas, which grows when a formula's change gives other results for the same sums."""
LOOKS_PER_CHUNK = 100

_START = datetime.datetime.fromtimestamp(0, datetime.UTC)


async def analysis_chunks(conn: Connection, scope: Scope) -> AsyncIterator[bytes]:
    """Yield the bytes of the file. Stored looks are read LOOKS_PER_CHUNK at a time.

    The connection has to be in the transaction of a snapshot.
    """
    total, split = await load_total(conn, scope.id), Split(b"", b"", b"", scope.tables)
    segments = await load_segments(conn, scope.id)
    num_arms = len(scope.definition.arms)
    whole: dict[str, Any] = {
        "formulas_version": FORMULAS_VERSION,
        "experiment_id": scope.id,
        "version": scope.version,
        "state": scope.state,
        "started_at": scope.started_at,
        "stopped_at": scope.stopped_at,
        "definition": scope.definition,
        "metrics": _metrics(scope),
        "shares": {
            str(epoch): allocation.arm_shares(split, epoch, num_arms) for epoch in range(1, len(scope.tables) + 1)
        },
        "units": [(*key, units, delivered) for (_, key), (units, delivered, _) in sorted(total.units.items())],
        "sums": [
            (*key, metric, *msgspec.structs.astuple(sums)) for (_, key, metric), sums in sorted(total.sums.items())
        ],
        "times": [(*key, metric, bucket, num) for (_, key, metric, bucket), num in sorted(total.times.items())],
        "ages": [
            (epoch, arm, metric, age, each.n, each.y, each.yy, each.d, each.dd, each.yd)
            for (_, (epoch, arm, metric, age)), each in sorted(total.ages.items(), key=lambda item: item[0])
        ],
        "segment_units": [
            (*place, units, delivered) for (_, *place), (units, delivered, _) in sorted(segments.units.items())
        ],
        "segment_sums": [
            (*place, metric, *msgspec.structs.astuple(sums))
            for ((_, *place), metric), sums in sorted(segments.sums.items(), key=_place)
        ],
        "not_analysed": dict(sorted((await load_reasons(conn, scope.id)).items())),
    }
    yield (await asyncio.to_thread(msgspec.json.encode, whole))[:-1] + b',"looks":['
    after, separator = _START, b""
    while looks := await list_looks(conn, scope.id, after, LOOKS_PER_CHUNK):
        for look in looks:
            yield separator + msgspec.json.encode(look)
            separator = b","
        after = looks[-1].looked_at
    yield b"]}\n"


def _place(each: tuple[tuple[Place, str], Sums]) -> tuple[Place, str]:
    return each[0]


def _metrics(scope: Scope) -> dict[str, Any]:
    """Return how each metric of an experiment is computed from sums."""
    found = {}
    for name in sorted(_names(scope.definition)):
        read = read_metric(name, scope.own)
        if read is None:
            continue
        metric = read.metric
        kind = scope.own.get(name, "ratio" if metric is not None and metric.per_request else "mean")
        found[name] = {
            "name": read.name,
            "quantile": read.quantile,
            "kind": kind,
            "is_error": metric is not None and metric.is_error,
            "better": None if metric is None else metric.better,
            "is_in_every_unit": metric is not None and read.name in IN_EVERY_UNIT,
            "needs_equal_weights": metric is not None and metric.needs_equal_weights,
        }
    return found


def _names(definition: Experiment) -> set[str]:
    listed = definition.metrics
    named = {each.metric for each in listed.primary} | {each.metric for each in listed.guardrails}
    return named | set(listed.secondary)
