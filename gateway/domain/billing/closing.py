"""The decision whether a billing period may be closed, with the reason where it has to stay open. Pure."""

from __future__ import annotations

import datetime

import msgspec

GRACE = datetime.timedelta(hours=1)
"""The time after a month's end before the month can be closed.

Requests that began in it end, and journals are written down. Usage that comes even later is billed in the next month,
as a correction.
"""

LOST_GRACE = datetime.timedelta(days=3)
"""The time for which a lost journal keeps a month with usage of it from being closed: its folder may turn up."""


class LostJournals(msgspec.Struct, frozen=True):
    """The last lost gateway, and the number of requests in its journal that have no row in the ledger."""

    heard_at: datetime.datetime
    """The time of the gateway's last sign of life."""
    open_requests: int


def objection(
    start: datetime.date, next_open: datetime.date, now: datetime.datetime, lost: LostJournals | None
) -> str | None:
    """Return why the month that begins at start cannot be closed, or None.

    next_open: the first open month. lost: the journals that were lost, and since when; None where none was.
    """
    if start > next_open:
        return f"months are closed in order, and {next_open:%Y-%m} is next"
    if start < next_open:
        return f"it is before {next_open:%Y-%m}, the first open month"
    began_at, free_at = _midnight(start), _midnight(next_month(start)) + GRACE
    if now < free_at:
        return f"usage of the month may still arrive until {free_at:%Y-%m-%d %H:%M} UTC"
    if lost is not None and lost.heard_at >= began_at and now < free_at + LOST_GRACE:
        return (
            f"a gateway that was last heard of at {lost.heard_at:%Y-%m-%d %H:%M} UTC has {lost.open_requests} requests "
            f"in its journal; start it again, or close the month without these requests after "
            f"{free_at + LOST_GRACE:%Y-%m-%d %H:%M} UTC"
        )
    return None


def next_month(start: datetime.date) -> datetime.date:
    """Return the first day of the month after the one that begins at `start`."""
    return (start + datetime.timedelta(days=31)).replace(day=1)


def _midnight(day: datetime.date) -> datetime.datetime:
    return datetime.datetime.combine(day, datetime.time(), datetime.UTC)
