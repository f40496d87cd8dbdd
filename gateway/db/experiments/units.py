"""Units of experiments: the state of each, the end of its outcome window, and all rows that it is made of."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.db.experiments.events import Request, UnitId, UsageRow
from gateway.domain.experiments.units import UnitState

if TYPE_CHECKING:
    from gateway.db.pool import Connection

_encode = msgspec.msgpack.Encoder().encode
decode_state = msgspec.msgpack.Decoder(UnitState, strict=False).decode
"""Decodes a unit's state from its row. Not strict, since sums of votes beyond 64 bits are texts there."""
_MAX_PACKED = 2**63 - 1
_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)


class UnitRow(msgspec.Struct, frozen=True):
    """A unit that was exposed."""

    state: UnitState | None
    """The state of the unit; None: a gateway noted the unit, and the ledger has no row of it yet."""
    is_closed: bool
    """True if the outcome window is closed, and the unit's outcomes are in the sums."""


_LOAD = """
    SELECT u.experiment_id, u.digest, u.state, u.is_closed
    FROM unnest($1::text[], $2::bytea[]) AS a (experiment_id, digest)
        JOIN experiment_units u ON u.experiment_id = a.experiment_id AND u.digest = a.digest
    ORDER BY u.experiment_id, u.digest FOR UPDATE OF u
"""


async def load_units(conn: Connection, ids: Collection[UnitId]) -> dict[UnitId, UnitRow]:
    """Lock the rows of the given units until the transaction ends, and return those that exist."""
    return _units(await conn.fetch(_LOAD, *_columns(ids)))


# Read by an index alone, and no further than it matters.
_NUM_REQUESTS = """
    SELECT a.experiment_id, a.digest, (
               SELECT count(*) FROM (SELECT FROM experiment_requests r
                                     WHERE r.experiment_id = a.experiment_id AND r.digest = a.digest LIMIT $3) r) AS num
    FROM unnest($1::text[], $2::bytea[]) AS a (experiment_id, digest) JOIN experiments e ON e.id = a.experiment_id
    WHERE NOT EXISTS (SELECT FROM feedback f WHERE f.project_id = e.project_id AND f.digest = a.digest)
"""


async def count_requests_of_units(conn: Connection, ids: Collection[UnitId], most: int) -> dict[UnitId, int]:
    """Return the number of requests of each unit, counted up to a bound.

    Units with votes of their own, which are about no request, are left out.
    """
    rows = await conn.fetch(_NUM_REQUESTS, *_columns(ids), most) if ids else []
    return {(row["experiment_id"], row["digest"]): row["num"] for row in rows}


_OF_PROJECT = """
    SELECT u.experiment_id, u.digest, u.state, u.is_closed
    FROM experiment_units u JOIN experiments e ON e.id = u.experiment_id
    WHERE u.digest = $2 AND e.project_id = $1
    ORDER BY u.experiment_id FOR UPDATE OF u
"""


async def units_of_digest(conn: Connection, project_id: str, digest: bytes) -> dict[UnitId, UnitRow]:
    """Return the rows of one unit in a project's experiments, locked until the transaction ends."""
    return _units(await conn.fetch(_OF_PROJECT, project_id, digest))


# The project's experiments that take their units from the same place.
_ALIKE = """
    SELECT DISTINCT u.experiment_id, u.digest, u.state, u.is_closed
    FROM unnest($1::text[], $2::bytea[]) AS a (experiment_id, digest)
        JOIN experiments e ON e.id = a.experiment_id
        JOIN experiment_units u ON u.digest = a.digest AND u.state IS NOT NULL
        JOIN experiments o ON o.id = u.experiment_id AND o.project_id = e.project_id
            AND o.definition -> 'unit' = e.definition -> 'unit'
"""


async def units_of_same_source(conn: Connection, ids: Collection[UnitId]) -> dict[UnitId, UnitRow]:
    """Return the rows of units in all experiments of their project that have the same source of units."""
    return _units(await conn.fetch(_ALIKE, *_columns(ids))) if ids else {}


_DUE = """
    SELECT experiment_id, digest, state, is_closed FROM experiment_units
    WHERE NOT is_closed AND closes_at IS NOT NULL AND closes_at < now() - $1::interval
    ORDER BY closes_at LIMIT $2
"""


async def units_to_close(conn: Connection, grace: datetime.timedelta, most: int) -> dict[UnitId, UnitRow]:
    """Return units whose outcome window ended at least `grace` ago and whose outcomes are not in the sums.

    The oldest comes first. Runs in a transaction that has the lock of units and sums.
    """
    return _units(await conn.fetch(_DUE, grace, most))


class UnitWrite(msgspec.Struct, frozen=True):
    """The new row of a unit."""

    id: UnitId
    state: UnitState
    closes_us: int
    """The end of the unit's outcome window, in microseconds of Unix time."""
    is_closed: bool
    """True if the window has ended, and the outcomes are in the results."""


_WRITE = """
    INSERT INTO experiment_units AS u (
        experiment_id, digest, epoch, arm, noted_at, state, closes_at, is_closed, num_requests)
    SELECT * FROM unnest($1::text[], $2::bytea[], $3::smallint[], $4::smallint[], $5::timestamptz[], $6::bytea[],
                         $7::timestamptz[], $8::boolean[], $9::bigint[])
    ON CONFLICT (experiment_id, digest) DO UPDATE SET
        (epoch, arm) = (SELECT CASE WHEN is_kept THEN u.epoch ELSE excluded.epoch END,
                               CASE WHEN is_kept THEN u.arm ELSE excluded.arm END
                        FROM (SELECT u.epoch < excluded.epoch OR u.epoch > excluded.epoch
                                     AND excluded.noted_at >= u.noted_at + interval '1 minute') AS k (is_kept)),
        noted_at = least(u.noted_at, excluded.noted_at), state = excluded.state, closes_at = excluded.closes_at,
        is_closed = excluded.is_closed, num_requests = excluded.num_requests
    RETURNING experiment_id, epoch, xmax = 0 AS is_new
"""


async def write_units(conn: Connection, writes: Iterable[UnitWrite]) -> set[tuple[str, int]]:
    """Write units, in the order of their ids, whether or not a gateway has noted them.

    A unit that was noted in an earlier epoch, or a minute before in a later one, keeps that epoch: the request of its
    first exposure is not in the ledger yet.

    Return the experiments and epochs of units that no gateway had noted.
    """
    ordered = sorted(writes, key=lambda each: each.id)
    rows = []
    if ordered:
        rows = await conn.fetch(
            _WRITE,
            *_columns([each.id for each in ordered]),
            [each.state.epoch for each in ordered],
            [each.state.arm for each in ordered],
            [instant(each.state.first_us) for each in ordered],
            [encode_state(each.state) for each in ordered],
            [instant(each.closes_us) for each in ordered],
            [each.is_closed for each in ordered],
            [each.state.counts.num_requests for each in ordered],
        )
    return {(row["experiment_id"], row["epoch"]) for row in rows if row["is_new"]}


def encode_state(state: UnitState) -> bytes:
    """Return a state as its row stores it. Sums of votes are texts, since they may exceed 64 bits."""
    sums = [total for total, _ in state.votes.values()] + list(state.before.values())
    sums += [total for did in state.days.values() for total, _ in did.votes.values()]
    if all(abs(total) <= _MAX_PACKED for total in sums):
        return _encode(state)
    texts = {
        "votes": _wide(state.votes),
        "days": {age: [did.counts, _wide(did.votes)] for age, did in state.days.items()},
        "before": {metric: str(value) for metric, value in state.before.items()},
    }
    return _encode([texts.get(name, getattr(state, name)) for name in state.__struct_fields__])


def _wide(votes: Mapping[str, tuple[int, int]]) -> dict[str, tuple[str, int]]:
    return {metric: (str(total), num) for metric, (total, num) in votes.items()}


class Vote(msgspec.Struct, frozen=True):
    """A vote that counts: the latest vote of its source about its request or unit, unless that vote was withdrawn."""

    feedback_id: str
    metric: str
    value: int
    """The value in millionths."""
    at_us: int
    """The time at which the vote was cast, in microseconds of Unix time."""
    is_by_judge: bool
    """True if a model cast the vote, whose source is 'judge' then."""


class UnitRows(msgspec.Struct, frozen=True):
    """All rows that a unit is made of."""

    requests: list[Request] = []
    usage: dict[str, list[UsageRow]] = {}
    """The rows of the ledger by request, in the order of attempts and revisions."""
    votes: list[Vote] = []


_EXTENT = """
    SELECT min(r.created_at) AS since, count(*) AS num FROM unnest($1::text[], $2::bytea[]) AS a (experiment_id, digest)
        JOIN experiment_requests r ON r.experiment_id = a.experiment_id AND r.digest = a.digest
"""

# One statement, so that what it counts and the events that it deletes are of one moment: an event that is there is of
# rows that are there. Bounded by a time, so that only the ledger's partitions from then on are read.
_ROWS = """
    WITH asked AS MATERIALIZED (
        SELECT a.* FROM unnest($1::text[], $2::bytea[]) WITH ORDINALITY AS a (experiment_id, digest, place)
    ), requests AS MATERIALIZED (
        SELECT a.place, r.* FROM asked a
            JOIN experiment_requests r ON r.experiment_id = a.experiment_id AND r.digest = a.digest
    ), gone AS (
        DELETE FROM experiment_events e USING requests r WHERE $4 AND e.request_id = r.request_id
    )
    SELECT
        (SELECT json_agg(json_build_array(r.place - 1, r.request_id,
                                          (extract(epoch FROM r.created_at) * 1000000)::bigint, r.epoch, r.arm,
                                          r.is_delivered, r.num_refused,
                                          CASE WHEN r.gateway IS NULL THEN '[]'::json ELSE json_build_array(
                                              r.api_key_id, r.endpoint, r.stream::text, r.service_tier, r.gateway) END))
         FROM requests r) AS requests,
        (SELECT json_agg(json_build_array(r.place - 1, l.request_id, l.attempt, l.revision, l.finish_reason,
                                          l.prompt_tokens, l.completion_tokens, l.cost_nanos, l.queue_ms, l.prefill_ms,
                                          l.decode_ms, l.ttft_ms, l.latency_ms))
         FROM requests r JOIN ledger l ON l.request_id = r.request_id AND l.created_at = r.created_at
         WHERE l.created_at >= $3 AND l.kind = 'usage') AS usage,
        (SELECT json_agg(json_build_array(v.place - 1, v.id, v.metric, v.value,
                                          (extract(epoch FROM v.occurred_at) * 1000000)::bigint, v.source = 'judge'))
         FROM (SELECT r.place, f.* FROM requests r
                   JOIN feedback f ON f.request_id = r.request_id AND f.project_id = r.project_id
               UNION ALL
               SELECT a.place, f.* FROM asked a JOIN experiments e ON e.id = a.experiment_id
                   JOIN feedback f ON f.project_id = e.project_id AND f.digest = a.digest) v
         WHERE v.withdrawn_at IS NULL) AS votes,
        (SELECT min(created_at) < $3 FROM requests) AS is_older
"""

_Decode = Callable[[str], list[tuple[Any, ...]]]
_Float = float | None
_decode_requests: _Decode = msgspec.json.Decoder(
    list[tuple[int, str, int, int, int, bool, int, tuple[str, ...]]]
).decode
_decode_usage: _Decode = msgspec.json.Decoder(
    list[tuple[int, str, int, int, str, int, int, int, float, float, float, _Float, _Float]]
).decode
_decode_votes: _Decode = msgspec.json.Decoder(list[tuple[int, str, str, int, int, bool]]).decode

_MARGIN = datetime.timedelta(days=1)
ROWS_TIMEOUT_S = 120.0
"""The most seconds for reading the rows of units: a unit may have millions of requests."""


MAX_RECOUNTED = 2_000_000
"""The most requests that one transaction recounts: a quarter of what a query does within its time."""


class OlderRequest(Exception):
    """The error for a request of days ago that was written just now, after the first query; a second try finds it."""


class UnitsTooLarge(Exception):
    """The error for units with more requests than one transaction may recount."""


async def rows_of_units(
    conn: Connection, ids: Sequence[UnitId], *, take_events: bool, most: int | None = None
) -> list[UnitRows]:
    """Return all rows of units, as of one moment.

    take_events: True: waiting events of the units' requests are deleted, since the rows include what they report. most:
    the most requests that the units may have together; None for no bound.

    Raises OlderRequest: when the transaction has to be begun anew.
    Raises UnitsTooLarge: when the units have more than `most` requests.
    """
    columns = _columns(ids)
    extent = await conn.fetchrow(_EXTENT, *columns)
    assert extent is not None
    if most is not None and extent["num"] > most:
        raise UnitsTooLarge(f"{len(ids)} units have {extent['num']} requests")
    since = extent["since"] or _EPOCH
    row = await conn.fetchrow(_ROWS, *columns, since - _MARGIN, take_events, timeout=ROWS_TIMEOUT_S)
    assert row is not None
    if row["is_older"]:
        raise OlderRequest
    found = [UnitRows([], {}, []) for _ in ids]
    for place, *request in _decode_requests(row["requests"] or "[]"):
        found[place].requests.append(Request(*request))
    for place, request_id, *usage in _decode_usage(row["usage"] or "[]"):
        found[place].usage.setdefault(request_id, []).append(UsageRow(*usage))
    for place, *vote in _decode_votes(row["votes"] or "[]"):
        found[place].votes.append(Vote(*vote))
    for each in found:
        for usages in each.usage.values():
            usages.sort(key=lambda one: (one.attempt, one.revision))
    return found


_PAGE = """
    SELECT u.experiment_id, u.digest, u.state, u.is_closed FROM experiment_units u
    WHERE u.experiment_id = $1 AND u.digest > $2 AND u.state IS NOT NULL ORDER BY u.digest LIMIT $3
"""
_WITH_EVENTS = """
    SELECT r.digest FROM experiment_events e JOIN experiment_requests r ON r.request_id = e.request_id
    WHERE e.experiment_id = $1
    UNION
    SELECT r.digest FROM experiment_events e JOIN feedback f ON f.id = e.feedback_id
        JOIN experiment_requests r ON r.request_id = f.request_id
    WHERE r.experiment_id = $1
    UNION
    SELECT f.digest FROM experiment_events e JOIN feedback f ON f.id = e.feedback_id
        JOIN experiments x ON x.project_id = f.project_id
    WHERE x.id = $1 AND f.digest IS NOT NULL
"""


async def page_of_units(conn: Connection, experiment_id: str, after: bytes, most: int) -> dict[UnitId, UnitRow]:
    """Return known units in the order of their digests, from the one after `after`, at most `most`."""
    return _units(await conn.fetch(_PAGE, experiment_id, after, most))


async def digests_with_events(conn: Connection, experiment_id: str) -> set[bytes]:
    """Return the digests of units with events that are not in the sums yet."""
    return {row["digest"] for row in await conn.fetch(_WITH_EVENTS, experiment_id)}


class BusyUnit(msgspec.Struct, frozen=True):
    """A unit of an experiment with many requests."""

    digest: bytes
    num_requests: int


_BUSY_FROM = 100
_BUSY = """
    SELECT digest, num_requests FROM experiment_units
    WHERE experiment_id = $1 AND num_requests >= 100 AND num_requests > $2 ORDER BY num_requests DESC LIMIT $3
"""
_BUSY_OF_FEW = """
    SELECT digest, num_requests FROM experiment_units
    WHERE experiment_id = $1 AND num_requests > $2 ORDER BY num_requests DESC LIMIT $3
"""


async def busy_units(conn: Connection, experiment_id: str, more_than: int, most: int) -> list[BusyUnit]:
    """Return the units with more requests than a number, the busiest first."""
    if more_than >= _BUSY_FROM:  # an index has these; where one hundredth is less, there are few units
        rows = await conn.fetch(_BUSY, experiment_id, more_than, most)
    else:
        rows = await conn.fetch(_BUSY_OF_FEW, experiment_id, more_than, most)
    return [BusyUnit(**row) for row in rows]


_NOTED = """
    SELECT count(*) FROM experiment_units
    WHERE experiment_id = $1 AND state IS NULL AND noted_at < now() - interval '1 minute'
"""


async def num_noted_alone(conn: Connection, experiment_id: str) -> int:
    """Return the number of units that a gateway noted a while ago and that have no request in the ledger."""
    num: int = await conn.fetchval(_NOTED, experiment_id)
    return num


_FORGET_EVENTS = """
    DELETE FROM experiment_events e USING experiment_requests r
    WHERE r.project_id = $1 AND r.digest = $2 AND e.request_id = r.request_id
      AND r.experiment_id IN (SELECT id FROM experiments WHERE project_id = $1)
"""
# Each half by an index of its own: with OR, all votes of the project would be read.
_FORGET_FEEDBACK = """
    DELETE FROM feedback f USING (
        SELECT id FROM feedback WHERE project_id = $1 AND digest = $2
        UNION
        SELECT v.id FROM experiment_requests r JOIN feedback v ON v.request_id = r.request_id AND v.project_id = $1
        WHERE r.digest = $2 AND r.experiment_id IN (SELECT id FROM experiments WHERE project_id = $1)
    ) gone WHERE f.id = gone.id
"""
_FORGET_REQUESTS = """
    DELETE FROM experiment_requests
    WHERE digest = $2 AND experiment_id IN (SELECT id FROM experiments WHERE project_id = $1)
"""
_FORGET_UNIT = """
    DELETE FROM experiment_units
    WHERE digest = $2 AND experiment_id IN (SELECT id FROM experiments WHERE project_id = $1)
"""


FORGET = _FORGET_EVENTS, _FORGET_FEEDBACK, _FORGET_REQUESTS, _FORGET_UNIT
"""The statements that forget a unit, in this order; each takes a project and a digest."""


async def forget_rows(conn: Connection, project_id: str, digest: bytes) -> None:
    """Delete every row of a project that has a unit's digest, its requests' events and the votes about both."""
    for statement in (_FORGET_EVENTS, _FORGET_FEEDBACK, _FORGET_REQUESTS, _FORGET_UNIT):
        await conn.execute(statement, project_id, digest)


def instant(unix_us: int) -> datetime.datetime:
    """Return an instant that is given in microseconds of Unix time."""
    return _EPOCH + datetime.timedelta(microseconds=unix_us)


def _units(rows: Iterable[Any]) -> dict[UnitId, UnitRow]:
    return {
        (row["experiment_id"], row["digest"]): UnitRow(
            None if row["state"] is None else decode_state(row["state"]), row["is_closed"]
        )
        for row in rows
    }


def _columns(ids: Collection[UnitId]) -> tuple[list[str], list[bytes]]:
    return [each[0] for each in ids], [each[1] for each in ids]
