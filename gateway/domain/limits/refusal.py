"""Explains refusals by limits, and a caller's limits in OpenAI's headers.

Pure: turns a shortage into an error.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable

import msgspec

from gateway.domain.billing.money import decimal_text
from gateway.domain.errors import LimitReached, QuotaExceeded
from gateway.domain.limits.limit import NS_PER_S, Limit, Scope, Unit, Window
from gateway.domain.limits.slices import Entry, Shortage

CONCURRENCY_RETRY_S = 1.0

_NOUNS: dict[Unit, str] = {
    "requests": "requests",
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
    "tokens": "tokens",
    "cost_nanos": "of cost",
    "concurrency": "requests at a time",
    "storage_bytes": "bytes stored",
    "enqueued_batch_tokens": "tokens of batches that wait",
}
_TOKENS: tuple[Unit, ...] = ("tokens", "input_tokens", "output_tokens")
_LENGTHS: dict[Window, int] = {"minute": 0, "day": 1, "month": 2}

Headers = tuple[tuple[str, str], ...]


class Explanation(msgspec.Struct, frozen=True):
    """The limit that refused the request, for programs."""

    id: str
    scope: Scope
    model: str | None
    unit: Unit
    window: Window
    max: int
    used: int | None
    """The amount that is used; null for a limit of the whole organization, which would show the traffic of other
    projects."""
    reserved: int | None
    """The amount that running requests have reserved; null for a limit of the whole organization."""
    needed: int
    """The least that the request needs."""
    frees_at: int | None
    """Unix seconds at which the window ends; null where the end of running requests, or credit, makes room."""


def refusal(shortage: Shortage, headers: Headers, currency: str) -> LimitReached:
    """Return the error for an exhausted limit, with the time to come again.

    Programs get nanos, people the currency.
    """
    limit = shortage.limit
    subject = _subject(limit, currency)
    used, reserved, need = (
        _amount(limit.unit, each, currency) for each in (shortage.used, shortage.reserved, shortage.need)
    )
    is_shared = limit.scope == "organization"
    explanation = Explanation(
        limit.id,
        limit.scope,
        limit.model,
        limit.unit,
        limit.window,
        limit.max,
        None if is_shared else shortage.used,
        None if is_shared else shortage.reserved,
        shortage.need,
        shortage.frees_s,
    )
    if limit.is_balance:
        message = (
            f"{subject}: {used} used, {reserved} reserved by running requests, and this request needs at least {need}. "
            "Add credit to go on."
        )
        return QuotaExceeded(message, limit=explanation, headers=(*headers, ("x-should-retry", "false")))
    if shortage.need > limit.max:
        message = f"{subject}, and this request alone needs at least {need}, which the limit never allows."
        kind = LimitReached if limit.window in ("minute", "none") else QuotaExceeded
        return kind(message, limit=explanation, headers=(*headers, ("x-should-retry", "false")))
    if limit.unit == "concurrency":
        running = "as many" if is_shared else str(shortage.reserved)
        message = f"{subject}, and {running} are running. Try again when one of them has ended."
        return LimitReached(message, limit=explanation, headers=headers, retry_after_s=CONCURRENCY_RETRY_S)
    message = subject
    if not is_shared:
        message += f": {used} used, {reserved} reserved by running requests"
    message += f", and this request needs at least {need}{', more than is left' if is_shared else ''}."
    assert shortage.frees_s is not None
    wait_s = max(0.0, (shortage.frees_s * NS_PER_S - shortage.now_ns) / NS_PER_S)
    frees = datetime.datetime.fromtimestamp(shortage.frees_s, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    message += f" The window ends at {frees}, in {duration(wait_s)}."
    if limit.window == "minute":
        return LimitReached(message, limit=explanation, headers=headers, retry_after_s=wait_s)
    headers = (*headers, ("x-should-retry", "false"))
    return QuotaExceeded(message, limit=explanation, headers=headers, retry_after_s=wait_s)


def rate_limit_headers(entries: Iterable[Entry], now_ns: int) -> Headers:
    """Return the headers `x-ratelimit-*` for requests and for tokens.

    The limit shown is the one with the least left among those of the shortest window. `remaining` is the last amount
    that this gateway knows. Limits of the whole organization are left out: their rest would show the traffic of its
    other projects.
    """
    chosen: dict[str, tuple[int, int, Entry]] = {}
    for entry in entries:
        limit = entry.limit
        kind = "requests" if limit.unit == "requests" else "tokens" if limit.unit in _TOKENS else None
        if kind is None or limit.scope == "organization":
            continue
        found, length = chosen.get(kind), _LENGTHS[limit.window]
        if found is None or length <= found[0]:
            remaining = max(0, entry.slice.left + entry.slice.free)
            if found is None or (length, remaining) < found[:2]:
                chosen[kind] = length, remaining, entry
    headers = []
    for kind, (_, remaining, entry) in chosen.items():
        end_s = entry.slice.window_end
        reset_s = max(0.0, end_s - now_ns / NS_PER_S) if end_s is not None else 0.0
        headers += [
            (f"x-ratelimit-limit-{kind}", str(entry.limit.max)),
            (f"x-ratelimit-remaining-{kind}", str(remaining)),
            (f"x-ratelimit-reset-{kind}", duration(reset_s)),
        ]
    return tuple(headers)


def duration(seconds: float) -> str:
    """Return a duration as OpenAI writes it: `12ms`, `1.5s`, `6m0s`, `23h59m59s`."""
    if seconds < 1:
        return f"{round(seconds * 1e3)}ms"
    if seconds < 60:
        return f"{round(seconds, 1):g}s"
    hours, rest = divmod(round(seconds), 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}h{minutes}m{left}s" if hours else f"{minutes}m{left}s"


def _amount(unit: Unit, number: int, currency: str) -> str:
    return f"{decimal_text(number)} {currency.upper()}" if unit == "cost_nanos" else str(number)


def _subject(limit: Limit, currency: str) -> str:
    most, noun = _amount(limit.unit, limit.max, currency), _NOUNS[limit.unit]
    if limit.is_balance:
        return f"The credits of this project come to {most}"
    whose = {"organization": "organization", "project": "project", "key": "API key"}[limit.scope]
    model = f" with the model '{limit.model}'" if limit.model is not None else ""
    per = "" if limit.window == "none" else f" per {limit.window}"
    return f"The limit of this {whose}{model} is {most} {noun}{per}"
