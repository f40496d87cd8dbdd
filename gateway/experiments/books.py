"""Adds waiting events to units and sums, closes outcome windows, and forgets units: each in one transaction at a time.

A transaction takes a batch of events, reads the units that they are about, and adds the changes. If one event more is
not enough to know a unit's contribution, the unit is recounted from its rows (`recount`), and its waiting events are
taken as well. Knows no SQL.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from gateway.db.experiments.events import QueuedEvent, UnitId, lock_sums, take_events, try_lock
from gateway.db.experiments.feedback.counts import VoteDifference, drop_withdrawn, vote_changes, write_counted
from gateway.db.experiments.scopes import Scope, find_scopes
from gateway.db.experiments.sums.adding import add_total
from gateway.db.experiments.sums.total import Total
from gateway.db.experiments.units import (
    MAX_RECOUNTED,
    UnitRow,
    UnitWrite,
    Vote,
    count_requests_of_units,
    forget_rows,
    load_units,
    rows_of_units,
    units_of_digest,
    units_of_same_source,
    units_to_close,
    write_units,
)
from gateway.db.ledger.usage import SUPERSEDED
from gateway.db.pool import Database, replan
from gateway.domain.experiments.units import (
    Changes,
    Event,
    Rows,
    UnitState,
    rows_of,
    state_after_events,
    table_changes,
    with_event,
)
from gateway.experiments.recount import has_all_requests, recounted, request_event, vote_event, with_outcomes_before

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_EVENTS = 1_000
"""The most events that one transaction adds: to forget a unit waits for one transaction."""
MAX_CLOSED = 1_000
"""The most outcome windows that one transaction closes."""
GRACE = datetime.timedelta(seconds=10)
"""The time for which an ended window stays open, so that late rows of the ledger are there when it is closed."""


class Counted(msgspec.Struct, frozen=True):
    """The changes of one transaction."""

    num: int
    """The number of events that were counted, or of windows that were closed."""
    experiment_ids: frozenset[str] = frozenset()
    """The experiments whose sums changed."""
    new_units: frozenset[tuple[str, int]] = frozenset()
    """The experiments and epochs of units that no gateway had noted."""


class _Unit(msgspec.Struct):
    """A unit of an experiment while events are added to it."""

    row: UnitRow
    state: UnitState | None
    """The unit's state so far; None before its first exposure is known."""
    has_to_recount: bool = False
    """True if all the unit's events have to be counted anew."""
    first_requests: list[Event] = []
    """The unit's requests among the events, for a unit that has no state yet."""


async def count_events(conn: Connection, most: int = MAX_EVENTS) -> Counted | None:
    """Add the oldest events to units and sums, in the caller's transaction; None if another transaction does so now.

    most: the most events to add.

    Raises OlderRequest: when the transaction has to be begun anew.
    """
    if not await try_lock(conn):
        return None
    taken = await take_events(conn, most)
    if not taken:
        return Counted(0)
    await replan(conn)
    votes = await vote_changes(
        conn,
        {each.feedback_id for each in taken if each.feedback_id is not None},
        {each.request.request_id for each in taken if each.request is not None},
    )
    ids = {(each.experiment_id, each.digest) for each in taken if each.digest is not None}
    ids |= {each.unit for each in votes}
    scopes: Mapping[str, Scope] = await find_scopes(conn, {experiment_id for experiment_id, _ in ids})
    rows = await load_units(conn, sorted(each for each in ids if each[0] in scopes))
    units = {each: _Unit(row, row.state) for each, row in rows.items()}
    _add_requests(units, taken, scopes)
    await _begin_units(conn, units, scopes)
    again = sorted(each for each, unit in units.items() if unit.has_to_recount)
    anew = await _recount(conn, units, again, scopes)
    counted, removed = _add_votes(units, votes, scopes)
    scopes = await _add_outcomes_before(conn, units, scopes)
    new_units = await _write(conn, units, scopes)
    await write_counted(conn, [*anew, *counted], removed, [each for each in again if units[each].has_to_recount])
    await drop_withdrawn(conn, {each.feedback_id for each in votes if each.current is None})
    return Counted(len(taken), frozenset(scopes), frozenset(new_units))


def _add_requests(units: dict[UnitId, _Unit], taken: Collection[QueuedEvent], scopes: Mapping[str, Scope]) -> None:
    """Add requests to their units' states.

    Units are marked to be recounted where a row in the ledger corrects or replaces usage that was counted before, or
    where the state does not hold enough to add the request.
    """
    for event in taken:
        scope = scopes.get(event.experiment_id)
        if event.digest is None or event.request is None or scope is None:
            continue
        unit = units.setdefault((event.experiment_id, event.digest), _Unit(UnitRow(None, False), None))
        usage = event.usage
        if usage is not None and (usage.attempt or usage.revision or usage.finish_reason == SUPERSEDED):
            unit.has_to_recount = True
        if unit.has_to_recount:
            continue
        does = request_event(event.request, [usage] if usage else [])
        if unit.state is None:
            unit.first_requests.append(does)
            continue
        state = with_event(unit.state, does, scope.window_us)
        if state is None:
            unit.has_to_recount = True
        else:
            unit.state = state


async def _begin_units(conn: Connection, units: Mapping[UnitId, _Unit], scopes: Mapping[str, Scope]) -> None:
    """Give new units their first states by their requests among the events.

    Units with further requests are marked to be recounted.
    """
    new = {each: unit for each, unit in units.items() if unit.first_requests and not unit.has_to_recount}
    known = await count_requests_of_units(conn, sorted(new), MAX_EVENTS + 1)
    for each, unit in new.items():
        if known.get(each) == len(unit.first_requests):
            unit.state = state_after_events(unit.first_requests, scopes[each[0]].window_us)
        unit.has_to_recount = unit.state is None


def _add_votes(
    units: dict[UnitId, _Unit], votes: Collection[VoteDifference], scopes: Mapping[str, Scope]
) -> tuple[list[tuple[UnitId, Vote]], list[tuple[UnitId, str]]]:
    """Add to units the difference between their votes and the votes counted so far.

    Return the votes that count now, and the votes of which nothing is counted any more. A unit that was recounted has
    its votes already, and an unknown one gets them once it is known.
    """
    counted, removed = [], []
    for vote in votes:
        unit, scope = units.get(vote.unit), scopes.get(vote.unit[0])
        if unit is None or unit.state is None or scope is None:
            continue
        if unit.has_to_recount or vote.counted == vote.current:
            continue
        for each, sign in ((vote.counted, -1), (vote.current, 1)):
            if each is not None and unit.state is not None:
                unit.state = with_event(unit.state, vote_event(each, sign), scope.window_us)
        if vote.current is not None:
            counted.append((vote.unit, vote.current))
        else:
            removed.append((vote.unit, vote.feedback_id))
    return counted, removed


async def _recount(
    conn: Connection, units: dict[UnitId, _Unit], again: list[UnitId], scopes: Mapping[str, Scope]
) -> list[tuple[UnitId, Vote]]:
    """Count units anew by their rows, and return their votes.

    A unit whose requests were deleted by now stays as it is.
    """
    counted: list[tuple[UnitId, Vote]] = []
    if not again:
        return counted
    for each, rows in zip(again, await rows_of_units(conn, again, take_events=True, most=MAX_RECOUNTED), strict=True):
        unit = units[each]
        if has_all_requests(rows, unit.row.state):
            unit.state = recounted(rows, scopes[each[0]].window_us)
            counted += [(each, vote) for vote in rows.votes if unit.state is not None]
        else:
            unit.state, unit.has_to_recount = unit.row.state, False
    return counted


async def _add_outcomes_before(
    conn: Connection, units: dict[UnitId, _Unit], scopes: Mapping[str, Scope]
) -> Mapping[str, Scope]:
    """Update the outcomes before the first exposure in the states of units: their covariates.

    This concerns the changed units and, in the project's other experiments with the same source of units, the states of
    the same units.

    Return the scopes of all experiments involved.
    """
    changed = [
        each
        for each, unit in units.items()
        if unit.state is not None and unit.state != unit.row.state and scopes[each[0]].has_alike
    ]
    if not changed:
        return scopes
    for each, row in (await units_of_same_source(conn, changed)).items():
        units.setdefault(each, _Unit(row, row.state))
    missing = {experiment_id for experiment_id, _ in units} - scopes.keys()
    scopes = {**scopes, **await find_scopes(conn, missing)}
    digests = {(scopes[each[0]].project_id, each[1]) for each in changed}
    alike = {each: unit.state for each, unit in units.items() if (scopes[each[0]].project_id, each[1]) in digests}
    for each, state in with_outcomes_before(alike, scopes).items():
        units[each].state = state
    return scopes


async def _write(conn: Connection, units: Mapping[UnitId, _Unit], scopes: Mapping[str, Scope]) -> set[tuple[str, int]]:
    """Write the new states of units, and add to the sums the difference from the states before.

    Return the experiments and epochs of units that no gateway had noted.
    """
    total, writes = Total(), []
    for each, unit in units.items():
        if unit.state is None or unit.state == unit.row.state:
            continue
        scope = scopes[each[0]]
        total.add(scope.id, _changes(scope, unit.row, UnitRow(unit.state, unit.row.is_closed)))
        writes.append(UnitWrite(each, unit.state, unit.state.closes_us(scope.window_us), unit.row.is_closed))
    new_units = await write_units(conn, writes)
    await add_total(conn, total)
    return new_units


async def close_windows(conn: Connection, most: int = MAX_CLOSED, grace: datetime.timedelta = GRACE) -> Counted | None:
    """Add the outcomes of up to `most` units whose windows ended at least `grace` ago, in the caller's transaction.

    Return None while another transaction changes units.
    """
    if not await try_lock(conn):
        return None
    due = await units_to_close(conn, grace, most)
    scopes = await find_scopes(conn, {experiment_id for experiment_id, _ in due})
    total, writes = Total(), []
    for each, row in due.items():
        scope = scopes[each[0]]
        assert row.state is not None
        total.add(scope.id, _changes(scope, row, UnitRow(row.state, is_closed=True)))
        writes.append(UnitWrite(each, row.state, row.state.closes_us(scope.window_us), is_closed=True))
    await write_units(conn, writes)
    await add_total(conn, total)
    return Counted(len(due), frozenset(scopes))


async def forget_unit(database: Database, project_id: str, digest: bytes) -> int:
    """Remove all that a project's experiments know of a unit, and what the unit added to sums.

    Return the number of experiments that knew the unit. A request of the unit that is not in the ledger yet makes the
    unit known again, as a new one.

    Raises one of `gateway.db.pool.FAILURES`: when the database fails.
    """
    async with database.transaction() as conn:
        return await forget_unit_in_transaction(conn, project_id, digest)


async def forget_unit_in_transaction(conn: Connection, project_id: str, digest: bytes) -> int:
    """Remove all that a project's experiments know of a unit, as a part of the caller's transaction.

    Return the number of experiments that knew the unit.
    """
    await lock_sums(conn)
    units = await units_of_digest(conn, project_id, digest)
    scopes = await find_scopes(conn, {experiment_id for experiment_id, _ in units})
    total = Total()
    for each, row in units.items():
        total.add(each[0], _changes(scopes[each[0]], row, UnitRow(None, row.is_closed)))
    await forget_rows(conn, project_id, digest)
    await add_total(conn, total)
    return len(units)


def _changes(scope: Scope, before: UnitRow, after: UnitRow) -> Changes:
    """Return the changes of the sums for a unit that changes."""
    return table_changes(*(_rows(scope, each) for each in (before, after)))


def _rows(scope: Scope, unit: UnitRow) -> Rows:
    return rows_of(unit.state, scope.window_us, scope.own, is_closed=unit.is_closed)
