"""Remembers why requests are refused before they run, so that tenants and operators can look it up.

On a request's path it only counts in memory, of which it takes a bounded amount: alike refusals of a minute are one
entry, and beyond MAX_KINDS of them further ones are counted in a metric and forgotten. A task writes them every second.
Nothing of what requests say is kept: messages of requests that are wrong themselves, which may repeat it, are left out.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import time

import msgspec
import structlog
from prometheus_client import Counter

from gateway.db.pool import FAILURES, Database
from gateway.db.refusals import MAX_REQUEST_IDS, NewRefusal, drop_old_refusals, write_refusals
from gateway.errors import GatewayError, LimitReached, ModelNotFound, shortened

log = structlog.get_logger(__name__)

WRITE_EVERY_S = 1.0
SWEEP_EVERY_S = 60.0
TIMEOUT_S = 5.0
MAX_KINDS = 1000
MAX_KINDS_OF_STRANGERS = 100
"""Of those, with keys that nobody may have; guesses leave room for tenants' refusals."""

STATUSES = frozenset({400, 401, 403, 404, 409, 413, 422, 429, 503})
"""Of refusals; others are failures while a request ran."""


class Refused(msgspec.Struct, frozen=True):
    """One request that was refused. project_id "": its key was refused itself, and key_sha256 is of that key."""

    request_id: str
    organization_id: str
    project_id: str
    api_key_id: str
    key_sha256: bytes | None
    endpoint: str
    model: str
    error: GatewayError


class _Seen(msgspec.Struct):
    """Alike ones: the first of them, the ids of the first few, and how many."""

    first: Refused
    request_ids: list[str]
    num: int


class Refusals:
    """One per gateway process; writes between `start` and `stop`. lost: counts those there was no room for.
    timeout_s: of a write, after which what it had is lost, too."""

    def __init__(self, database: Database, lost: Counter, timeout_s: float = TIMEOUT_S) -> None:
        self._database = database
        self._lost = lost
        self._timeout_s = timeout_s
        self._seen: dict[tuple[object, ...], _Seen] = {}
        self._num_strange = 0
        self._sweep_at_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """What was counted so far is written, where the database takes it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.flush()

    def add(self, refused: Refused) -> None:
        """Count it; one that is no refusal, or of nobody, is passed over."""
        error, is_strange = refused.error, not refused.project_id
        if error.status not in STATUSES or (is_strange and refused.key_sha256 is None):
            return
        limit_id = getattr(error.limit, "id", "") if isinstance(error, LimitReached) else ""
        who = refused.key_sha256 if is_strange else (refused.project_id, refused.api_key_id)
        what = (refused.endpoint, refused.model, error.status, error.code, error.param, limit_id)
        alike = (int(time.time()) // 60, who, *what)
        seen = self._seen.get(alike)
        if seen is not None:
            seen.num += 1
            if len(seen.request_ids) < MAX_REQUEST_IDS:
                seen.request_ids.append(refused.request_id)
        elif len(self._seen) >= MAX_KINDS or (is_strange and self._num_strange >= MAX_KINDS_OF_STRANGERS):
            self._lost.inc()
        else:
            self._num_strange += is_strange
            self._seen[alike] = _Seen(refused, [refused.request_id], 1)

    async def flush(self) -> None:
        """Write what was counted; what cannot be written now is lost, and counted."""
        seen, self._seen, self._num_strange = self._seen, {}, 0
        if not seen:
            return
        try:
            async with asyncio.timeout(self._timeout_s), self._database.transaction() as conn:
                await write_refusals(conn, [_new(alike, each) for alike, each in seen.items()])
        except FAILURES as error:
            self._lost.inc(sum(each.num for each in seen.values()))
            log.warning("refusals_not_written", error=repr(error))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            try:
                await self.flush()
                await self._sweep()
            except FAILURES as error:
                log.warning("refusals_not_swept", error=repr(error))
            except Exception:
                log.exception("refusals_not_written")

    async def _sweep(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._sweep_at_s:
            self._sweep_at_s = now_s + SWEEP_EVERY_S
            async with asyncio.timeout(self._timeout_s), self._database.acquire() as conn:
                await drop_old_refusals(conn)


def _new(alike: tuple[object, ...], seen: _Seen) -> NewRefusal:
    first, error, minute = seen.first, seen.first.error, alike[0]
    assert isinstance(minute, int)
    limit = error.limit if isinstance(error, LimitReached) else None
    return NewRefusal(
        organization_id=first.organization_id,
        project_id=first.project_id,
        api_key_id=first.api_key_id,
        key_sha256=None if first.project_id else first.key_sha256,
        minute=datetime.datetime.fromtimestamp(60 * minute, datetime.UTC),
        kind=hashlib.sha256(repr(alike[1:]).encode()).digest(),
        request_ids=seen.request_ids,
        endpoint=first.endpoint,
        model=_text(first.model),
        status=error.status,
        code=error.code or "",
        type=error.type,
        param=_text(error.param or ""),
        message=_message(error),
        limited_by=None if limit is None else msgspec.json.encode(limit).decode(),
        num=seen.num,
    )


def _message(error: GatewayError) -> str:
    """Without what a client may have written itself."""
    if error.status in (400, 404, 409, 413, 422) and error.code != ModelNotFound.code:
        return f"The request is not valid{f': {_text(error.param)}' if error.param else ''}."
    return error.message


def _text(text: str) -> str:
    return shortened(text.replace("\0", ""))
