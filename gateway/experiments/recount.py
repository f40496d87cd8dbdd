"""Recounts the state of a unit from its rows alone: requests, the ledger and feedback.

Every sum of an experiment equals the recount. The bookkeeper recounts single units where adding an event is not enough;
`verify` recounts a whole experiment and reports differences to its tables. Knows no SQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.db.experiments.events import Request, UnitId, UsageRow
from gateway.db.experiments.scopes import Scope, find_scopes
from gateway.db.experiments.segments import SegmentTotal, by_value, load_segments
from gateway.db.experiments.sums.total import Total
from gateway.db.experiments.sums.whole import load_time_totals, load_total, load_totals
from gateway.db.experiments.units import (
    UnitRow,
    UnitRows,
    Vote,
    digests_with_events,
    page_of_units,
    rows_of_units,
    units_of_same_source,
)
from gateway.db.ledger.usage import REFUSED, SUPERSEDED
from gateway.domain.experiments.feedback.judged import judge_key
from gateway.domain.experiments.sums import NO_UNITS
from gateway.domain.experiments.units import (
    NO_COUNTS,
    NO_ROWS,
    NOTHING,
    US_PER_MS,
    Counts,
    Event,
    UnitState,
    covariates_of,
    rows_of,
    state_after_events,
    table_changes,
)

if TYPE_CHECKING:
    from gateway.db.pool import Connection

ERROR, LENGTH, ABORT = "error", "length", "abort"
PAGE = 2_000
MAX_DIFFERENCES = 100


def request_event(request: Request, usage: Sequence[UsageRow]) -> Event:
    """Return the event of one request.

    usage: the request's rows in the ledger, in the order of attempts and revisions; none if the request was refused. An
    attempt that another one took the place of adds nothing. A further prompt of a request, which has a dot in its id,
    adds tokens and costs, and no request.
    """
    is_whole = "." not in request.request_id
    counts, times = Counts(num_refusals=request.num_refused), {}
    for attempt in sorted({row.attempt for row in usage}):
        more, times_us = _attempt([row for row in usage if row.attempt == attempt], is_whole=is_whole)
        counts += more
        times.update(times_us)
    exposure = (request.epoch, request.arm) if is_whole else None
    return Event(
        request.at_us,
        request.request_id,
        counts,
        exposure,
        is_delivered=request.is_delivered,
        times_us=times,
        segments=request.segments,
    )


def vote_event(vote: Vote, sign: int = 1) -> Event:
    """Return the event of a vote. sign: 1, or -1 for the event that takes the vote back."""
    key, num_votes = (judge_key(vote.metric), 0) if vote.is_by_judge else (vote.metric, sign)
    return Event(vote.at_us, "", Counts(num_votes=num_votes), votes={key: (sign * vote.value, sign)})


def recounted(rows: UnitRows, window_us: int) -> UnitState | None:
    """Return the state of a unit by its rows alone; None where it was never exposed.

    window_us: the length of the outcome window in microseconds.
    """
    requests = (request_event(request, rows.usage.get(request.request_id, ())) for request in rows.requests)
    return state_after_events([*requests, *map(vote_event, rows.votes)], window_us)


def with_outcomes_before(
    states: Mapping[UnitId, UnitState | None], scopes: Mapping[str, Scope]
) -> dict[UnitId, UnitState]:
    """Return the states, each with the outcomes of its unit before the first exposure (`covariates_of`).

    The covariates come from the unit's states in the project's other experiments. The result has no states of units
    that were never exposed.

    states: for each unit, its states in all experiments of a project that have the same source of units. scopes: the
    facts about each experiment, by its id.
    """
    alike: dict[tuple[str, str, bytes], list[tuple[str, UnitState]]] = {}
    for (experiment_id, digest), state in states.items():
        scope = scopes[experiment_id]
        if state is not None:
            alike.setdefault((scope.project_id, scope.definition.unit.source, digest), []).append(
                (experiment_id, state)
            )
    found = {}
    for (_, _, digest), listed in alike.items():
        for experiment_id, state in listed:
            others = [(its, each, scopes[its].window_us) for its, each in listed if its != experiment_id]
            before = covariates_of(state.first_us, others, scopes[experiment_id].own)
            found[experiment_id, digest] = msgspec.structs.replace(state, before=before)
    return found


def has_all_requests(rows: UnitRows, state: UnitState | None) -> bool:
    """Tell whether the first request of a unit still has its row: old rows are deleted, and a state outlives them.

    state: None: the unit was never exposed, so that no row is lacking.
    """
    return state is None or any(request.request_id == state.first_id for request in rows.requests)


class Verification(msgspec.Struct, frozen=True):
    """The result of recounting a whole experiment."""

    num_units: int
    num_recounted: int
    """Units that were counted from rows; others have events that wait, or requests that were deleted by now."""
    differences: tuple[str, ...]
    """The first hundred differences in words; none where every integer is equal."""


async def verify(conn: Connection, experiment_id: str) -> Verification:
    """Compare an experiment's units and sums with a recount of all its rows, as of one moment.

    It takes as long as reading all rows does, and blocks no other transaction.

    Raises LookupError: when the experiment has not started.
    """
    async with conn.transaction(isolation="repeatable_read"):
        scope = (await find_scopes(conn, [experiment_id])).get(experiment_id)
        if scope is None:
            raise LookupError(experiment_id)
        waiting = await digests_with_events(conn, experiment_id)
        expected, after, num_units, num_recounted = Total(), b"", 0, 0
        found: list[str] = []
        while page := await page_of_units(conn, experiment_id, after, PAGE):
            num_units += len(page)
            after = max(digest for _, digest in page)
            num_recounted += await _compare_page(conn, scope, page, waiting, expected, found)
        found += _differences(expected, await load_total(conn, experiment_id))
        found += _differing("totals", expected.totals(), await load_totals(conn, experiment_id))
        found += _differing("totals of times", expected.time_totals(), await load_time_totals(conn, experiment_id))
        found += _segment_differences(scope.id, expected, await load_segments(conn, experiment_id))
    return Verification(num_units, num_recounted, tuple(found[:MAX_DIFFERENCES]))


async def _compare_page(
    conn: Connection,
    scope: Scope,
    page: dict[UnitId, UnitRow],
    waiting: set[bytes],
    expected: Total,
    found: list[str],
) -> int:
    """Recount units from their rows, add them to the expected sums, and add a line to `found` for each that differs.

    Return the number of units that were counted from rows.
    """
    asked = [unit for unit in page if unit[1] not in waiting]
    states = {unit: row.state for unit, row in page.items()}
    num = 0
    for unit, rows in zip(asked, await rows_of_units(conn, asked, take_events=False), strict=True):
        if has_all_requests(rows, page[unit].state):
            num += 1
            states[unit] = recounted(rows, scope.window_us)
    if scope.has_alike:
        alike = await units_of_same_source(conn, list(page))
        scopes = await find_scopes(conn, {experiment_id for experiment_id, _ in alike})
        before = with_outcomes_before({unit: row.state for unit, row in alike.items()} | states, scopes)
        states |= {unit: before[unit] for unit in page if unit in before}
    found += (
        f"unit {unit[1].hex()}: {page[unit].state} is {states[unit]} by its rows"
        for unit in asked
        if states[unit] != page[unit].state
    )
    for unit, state in states.items():
        rows_now = rows_of(state, scope.window_us, scope.own, is_closed=page[unit].is_closed)
        expected.add(scope.id, table_changes(NO_ROWS, rows_now))
    return num


def _differences(expected: Total, actual: Total) -> Iterable[str]:
    pairs: Iterable[tuple[Any, Any]] = zip(expected.nonzero(), actual.nonzero(), strict=True)
    for name, (recounted_rows, stored_rows) in zip(("units", "sums", "times", "ages"), pairs, strict=True):
        yield from _differing(name, recounted_rows, stored_rows)


def _differing(name: str, recounted_rows: Mapping[Any, object], stored_rows: Mapping[Any, object]) -> Iterable[str]:
    """Yield a sentence for each row of a table whose stored value differs from the recounted one."""
    for key in recounted_rows.keys() | stored_rows.keys():
        if recounted_rows.get(key) != stored_rows.get(key):
            yield f"{name} {key[1:]}: {stored_rows.get(key)} is {recounted_rows.get(key)} by a recount"


def _segment_differences(experiment_id: str, expected: Total, actual: SegmentTotal) -> Iterable[str]:
    mine = by_value(expected.segment_units, expected.segment_sums, actual.known(experiment_id))
    tables: tuple[tuple[str, Mapping[Any, object], Mapping[Any, object]], ...] = (
        ("units of segment", mine.units, {key: each for key, each in actual.units.items() if each != NOTHING}),
        ("sums of segment", mine.sums, {key: each for key, each in actual.sums.items() if each != NO_UNITS}),
    )
    for name, recount, its in tables:
        for key in recount.keys() | its.keys():
            if recount.get(key) != its.get(key):
                yield f"{name} {key[1:]}: {its.get(key)} is {recount.get(key)} by a recount"


def _attempt(rows: Sequence[UsageRow], *, is_whole: bool) -> tuple[Counts, dict[str, int]]:
    """Return the counts of an attempt, and its times in microseconds by name.

    rows: in the order of their revisions; each after the first holds the difference to a better count. is_whole: True:
    the attempt is the whole request; False: it is one prompt of several.
    """
    finish = rows[-1].finish_reason
    cost_nanos = sum(row.cost_nanos for row in rows)
    if finish == SUPERSEDED:
        return msgspec.structs.replace(NO_COUNTS, cost_nanos=cost_nanos), {}
    if finish == REFUSED:  # as if it had been refused before it ran
        return msgspec.structs.replace(NO_COUNTS, num_refusals=int(is_whole), cost_nanos=cost_nanos), {}
    completion_tokens = sum(row.completion_tokens for row in rows)
    counts = Counts(
        num_errors=int(finish == ERROR),
        cost_nanos=cost_nanos,
        prompt_tokens=sum(row.prompt_tokens for row in rows),
        completion_tokens=completion_tokens,
    )
    if not is_whole:
        return counts, {}
    queue_us = _us(sum(row.queue_ms for row in rows))
    engine_us = _us(sum(row.prefill_ms + row.decode_ms for row in rows))
    times = {"queue_ms": queue_us, "engine_ms": engine_us}
    ttft_ms = next((row.ttft_ms for row in reversed(rows) if row.ttft_ms is not None), None)
    latency_ms = next((row.latency_ms for row in reversed(rows) if row.latency_ms is not None), None)
    if finish == ABORT and ttft_ms is None:
        # The client waited for so long at least: without this time, an arm would gain by clients that give up.
        ttft_ms = latency_ms
    if ttft_ms is not None:
        times["ttft_ms"] = _us(ttft_ms)
        if latency_ms is not None and latency_ms >= ttft_ms and completion_tokens > 1:
            times["time_per_token_ms"] = _us((latency_ms - ttft_ms) / (completion_tokens - 1))
    counts = msgspec.structs.replace(
        counts,
        num_requests=1,
        num_cut=int(finish == LENGTH),
        ttft_us=times.get("ttft_ms", 0),
        num_ttft=int("ttft_ms" in times),
        token_us=times.get("time_per_token_ms", 0),
        num_token_times=int("time_per_token_ms" in times),
        queue_us=queue_us,
        engine_us=engine_us,
    )
    return counts, times


def _us(ms: float) -> int:
    return round(ms * US_PER_MS)
