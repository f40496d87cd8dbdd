"""Deletes stored content when its time is over or its project forbids it, and counts the rows that it cannot read.

Also reports the key with which this gateway encrypts. Every gateway has a keeper, which skips the rows that another one
is deleting.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import structlog

from gateway.content.resealing import reseal
from gateway.db.batches import batches, turns
from gateway.db.content import (
    background_responses,
    conversations,
    idempotency,
    request_contents,
    stored_chats,
    stored_responses,
)
from gateway.db.content.content_keys import UnreadableRow, note_content_keys, unreadable_content
from gateway.db.experiments import exposures
from gateway.db.experiments.feedback import votes
from gateway.db.files import files, uploads
from gateway.db.pool import Database
from gateway.support.cipher import Cipher
from gateway.support.secrets import Secrets
from gateway.support.worker import Worker

if TYPE_CHECKING:
    from gateway.db.pool import Connection

log = structlog.get_logger(__name__)

INTERVAL_S = 60.0
COUNT_INTERVAL_S = 86_400.0
"""Seconds between two counts of rows that this gateway cannot read, and of secrets under another key."""

DROPS = (
    idempotency.expire_slots,
    idempotency.drop_forbidden_replies,
    idempotency.drop_purged_slots,
    stored_chats.drop_old_chats,
    stored_responses.drop_old_responses,
    background_responses.drop_old_responses,
    background_responses.drop_old_events,
    conversations.drop_old_conversations,
    request_contents.drop_expired_contents,
    request_contents.drop_forbidden_contents,
    batches.drop_old_batches,
    turns.drop_old_turns,
    uploads.drop_old_uploads,
    files.drop_old_files,
    votes.drop_withdrawn_votes,
    votes.drop_old_votes,
    votes.drop_old_ids,
)


class Keeper(Worker):
    """Deletes content whose time is over, between `start` and `stop`."""

    def __init__(self, database: Database, cipher: Cipher, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(self.work, INTERVAL_S, name="kept content")
        self._database = database
        self._cipher = cipher
        self._secrets = Secrets(cipher)
        self._clock = clock
        self._others: list[str] = []
        self._count_at_s = clock()

    async def work(self) -> None:
        """Delete content that has expired. Now and then, encrypt old secrets again and report unreadable content.

        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """
        counts = self._clock() >= self._count_at_s
        if counts:
            await reseal(self._database, self._secrets)
        async with self._database.acquire() as conn:
            others = await note_content_keys(conn, self._cipher.key_ids, self._cipher.key_id)
            if others != self._others:
                self._warn(others)
            if counts:
                for row in await unreadable_content(conn, self._cipher.key_ids):
                    _report_unreadable(row)
                self._count_at_s = self._clock() + COUNT_INTERVAL_S
        for drop in DROPS:
            await _drop_all(self._database, drop)

    def _warn(self, others: list[str]) -> None:
        self._others = others
        if others:
            log.error(
                "content_keys_differ",
                error=f"gateways of this database encrypt kept content with the key {', '.join(others)}, which this "
                f"one (key {self._cipher.key_id}) does not have: what one keeps the other cannot read. Give all of "
                "them the same LORIKEET_CONTENT_KEY, or the same content.key in their data folders",
            )


async def drop_content(database: Database, project_id: str) -> None:
    """Delete all content of a project, a little in each transaction.

    Raises one of `gateway.db.pool.FAILURES`: when the database fails.
    """
    await _drop_all(database, lambda conn: idempotency.drop_slots_of(conn, project_id))
    await _drop_all(database, lambda conn: stored_chats.drop_chats_of(conn, project_id))
    await _drop_all(database, lambda conn: stored_responses.drop_responses_of(conn, project_id))
    await _drop_all(database, lambda conn: background_responses.drop_responses_of(conn, project_id))
    await _drop_all(database, lambda conn: conversations.drop_conversations_of(conn, project_id))
    await _drop_all(database, lambda conn: batches.drop_batches_of(conn, project_id))
    await _drop_all(database, lambda conn: files.drop_files_of(conn, project_id))
    await _drop_all(database, lambda conn: request_contents.drop_contents_of(conn, project_id))
    await _drop_all(database, lambda conn: votes.drop_votes_of(conn, project_id))
    await _drop_all(database, lambda conn: exposures.drop_units_of(conn, project_id))


async def _drop_all(database: Database, drop: Callable[[Connection], Awaitable[int]]) -> None:
    """Call `drop`, which deletes some rows and returns their number, until none are left."""
    num_dropped = 1
    while num_dropped:
        async with database.acquire() as conn:
            num_dropped = await drop(conn)


def _report_unreadable(row: UnreadableRow) -> None:
    log.error(
        "content_key_missing",
        key=row.id,
        num_replies=row.num_replies,
        num_chats=row.num_chats,
        num_responses=row.num_responses,
        num_items=row.num_items,
        num_files=row.num_files,
        num_contents=row.num_contents,
        num_unit_keys=row.num_unit_keys,
        num_comments=row.num_comments,
        num_secrets=row.num_secrets,
        error="kept content is encrypted with a key that this gateway does not have, so that it cannot be read: put "
        "the key behind the others in LORIKEET_CONTENT_KEY, or restore content.key",
    )
