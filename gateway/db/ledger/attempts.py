"""Reads the tokens of single attempts from the ledger, to compare them with what journals hold."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gateway.db.ledger.usage import SUPERSEDED
from gateway.db.pool import replan

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class AttemptTokens(msgspec.Struct, frozen=True):
    """The best count that the ledger has of one attempt."""

    num_tokens: int
    """The tokens of the prompt and of the completion, and the discarded tokens."""
    is_superseded: bool


_TOKENS = """
    SELECT f.request_id, f.attempt, (k.whole).finish_reason = $6 AS is_superseded,
           (k.whole).prompt_tokens + (k.whole).completion_tokens + (k.whole).discarded_tokens AS num_tokens
    FROM unnest($1::text[], $2::integer[], $3::timestamptz[]) AS f (request_id, attempt, created_at)
        CROSS JOIN LATERAL (
            SELECT whole_attempt(r ORDER BY r.revision) AS whole FROM ledger r
            WHERE r.request_id = f.request_id AND r.attempt = f.attempt AND r.created_at = f.created_at
              AND r.created_at BETWEEN $4 AND $5
        ) k
    WHERE (k.whole).request_id IS NOT NULL
"""


async def attempt_tokens(
    conn: Connection, attempts: Sequence[tuple[str, int, datetime.datetime]]
) -> dict[tuple[str, int], AttemptTokens]:
    """Return the tokens of those attempts that the ledger has, by request id and attempt.

    attempts: (request_id, attempt, created_at) of each; not empty.
    """
    await replan(conn)
    request_ids, numbers, instants = map(list, zip(*attempts, strict=True))
    rows = await conn.fetch(_TOKENS, request_ids, numbers, instants, min(instants), max(instants), SUPERSEDED)
    return {(row["request_id"], row["attempt"]): AttemptTokens(row["num_tokens"], row["is_superseded"]) for row in rows}
