"""Remembers why requests are refused before they run, for tenants and operators to look up.

On a request's path a refusal only counts in a bounded amount of memory: refusals of one kind and minute are one entry,
and beyond MAX_KINDS entries further kinds are counted in a metric and forgotten. A task writes the entries each second.
Nothing that requests say is kept: messages about wrong requests are left out, since they may repeat a request's words.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import time

import msgspec
import structlog
from prometheus_client import Counter

from gateway.db.ledger.refusals import MAX_REQUEST_IDS, NewRefusal, drop_old_refusals, write_refusals
from gateway.db.pool import FAILURES, Database
from gateway.domain.errors import GatewayError, LimitReached, ModelNotFound, shortened
from gateway.support.worker import Worker

log = structlog.get_logger(__name__)

WRITE_EVERY_S = 1.0
SWEEP_EVERY_S = 60.0
TIMEOUT_S = 5.0
MAX_KINDS = 1000
MAX_KINDS_OF_STRANGERS = 100
"""The most kinds of refusals for keys that do not exist; the rest of the room is for tenants' refusals."""

STATUSES = frozenset({400, 401, 403, 404, 409, 413, 415, 422, 429, 503})
"""The statuses of refusals; others are failures while a request ran."""


class RefusedRequest(msgspec.Struct, frozen=True):
    """A request that was refused."""

    request_id: str
    organization_id: str
    project_id: str
    """The id of the caller's project; empty where the key itself was refused."""
    api_key_id: str
    key_sha256: bytes | None
    """The SHA-256 of the API key, where the key itself was refused."""
    endpoint: str
    model: str
    error: GatewayError


class _Kind(msgspec.Struct, frozen=True):
    """The fields that make refusals alike. Texts are shortened, since a kind is held until it is written."""

    minute: int
    """The Unix minute of the refusals."""
    organization_id: str
    project_id: str
    api_key_id: str
    key_sha256: bytes | None
    """The hash of a key that is not known; None where the key is known, or where none was sent."""
    endpoint: str
    model: str
    status: int
    code: str
    param: str
    limit_id: str
    """The limit that refused; "" where none did."""


class _Entry(msgspec.Struct):
    """The refusals of one kind: the words of the first, the ids of the first few, and their number."""

    type: str
    message: str
    limit: object | None
    """The facts about the limit that refused, as they are shown; None where none did."""
    request_ids: list[str]
    """The ids of the first few requests."""
    num: int
    """The number of requests."""


class Refusals(Worker):
    """Counts refusals and writes them between `start` and `stop`. A gateway process has one.

    lost: counts the refusals for which there was no room.
    timeout_s: the longest time of a write, after which the refusals of that write are lost as well.
    """

    def __init__(self, database: Database, lost: Counter, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__(self._write, WRITE_EVERY_S, name="refusals", rests_first=True)
        self._database = database
        self._lost = lost
        self._timeout_s = timeout_s
        self._entries: dict[_Kind, _Entry] = {}
        self._num_strange = 0
        self._sweep_at_s = 0.0

    async def stop(self) -> None:
        """Write the refusals that were counted so far, if the database takes them."""
        await super().stop()
        await self.flush()

    def add(self, refused: RefusedRequest) -> None:
        """Count a refused request.

        Errors whose status is not in STATUSES, and refusals of callers with neither project nor key, do not count.
        """
        error, is_strange = refused.error, not refused.project_id
        if error.status not in STATUSES or (is_strange and refused.key_sha256 is None):
            return
        limit = error.limit if isinstance(error, LimitReached) else None
        kind = _Kind(
            minute=int(time.time()) // 60,
            organization_id=refused.organization_id,
            project_id=refused.project_id,
            api_key_id=refused.api_key_id,
            key_sha256=refused.key_sha256 if is_strange else None,
            endpoint=refused.endpoint,
            model=_text(refused.model),
            status=error.status,
            code=error.code or "",
            param=_text(error.param or ""),
            limit_id=getattr(limit, "id", ""),
        )
        entry = self._entries.get(kind)
        if entry is not None:
            entry.num += 1
            if len(entry.request_ids) < MAX_REQUEST_IDS:
                entry.request_ids.append(refused.request_id)
        elif len(self._entries) >= MAX_KINDS or (is_strange and self._num_strange >= MAX_KINDS_OF_STRANGERS):
            self._lost.inc()
        else:
            self._num_strange += is_strange
            # Not the error itself, which holds on to the frames that it was raised through and the request in them.
            self._entries[kind] = _Entry(error.type, _message(error), limit, [refused.request_id], 1)

    async def flush(self) -> None:
        """Write the refusals that were counted; those that cannot be written now are lost, and counted as lost."""
        entries, self._entries, self._num_strange = self._entries, {}, 0
        if not entries:
            return
        try:
            async with asyncio.timeout(self._timeout_s), self._database.transaction() as conn:
                await write_refusals(conn, [_new_refusal(kind, each) for kind, each in entries.items()])
        except FAILURES as error:
            self._lost.inc(sum(each.num for each in entries.values()))
            log.warning("refusals_not_written", error=repr(error))

    async def _write(self) -> None:
        await self.flush()
        await self._sweep_old()

    async def _sweep_old(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._sweep_at_s:
            self._sweep_at_s = now_s + SWEEP_EVERY_S
            async with asyncio.timeout(self._timeout_s), self._database.acquire() as conn:
                await drop_old_refusals(conn)


def _new_refusal(kind: _Kind, entry: _Entry) -> NewRefusal:
    return NewRefusal(
        organization_id=kind.organization_id,
        project_id=kind.project_id,
        api_key_id=kind.api_key_id,
        key_sha256=kind.key_sha256,
        minute=datetime.datetime.fromtimestamp(60 * kind.minute, datetime.UTC),
        kind=hashlib.sha256(msgspec.msgpack.encode(msgspec.structs.replace(kind, minute=0))).digest(),
        request_ids=entry.request_ids,
        endpoint=kind.endpoint,
        model=kind.model,
        status=kind.status,
        code=kind.code,
        type=entry.type,
        param=kind.param,
        message=entry.message,
        limited_by=None if entry.limit is None else msgspec.json.encode(entry.limit).decode(),
        num=entry.num,
    )


def _message(error: GatewayError) -> str:
    """Return an error's message without the words that a client may have written itself."""
    if error.status in (400, 404, 409, 413, 422) and error.code != ModelNotFound.code:
        return f"The request is not valid{f': {_text(error.param)}' if error.param else ''}."
    return error.message


def _text(text: str) -> str:
    return shortened(text.replace("\0", ""))
