"""The usage that may not be in the ledger yet: running requests, and the usage of those that have ended.

It is the sum of a journal's records, whoever reads them. Pure: no files, no clock, no database.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from engine.protocol import Usage, UsageRecord
from gateway.backends.usage import Count
from gateway.metering.format import (
    Adopted,
    Begun,
    Copied,
    Ended,
    EndedKey,
    Opened,
    Progressed,
    Record,
    Released,
)

ENDED_BYTES = 400
"""The approximate bytes of one `Ended` in the journal, without its meter tag and its request's id."""


class Running(msgspec.Struct):
    """A request that was sent, and the tokens that its client may have seen so far."""

    opened: Opened
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Unsettled:
    """The sum of a journal's records.

    running: requests by (request_id, attempt).
    ended: usage in the order in which it came.
    num_bytes: about the bytes that `ended` takes in a journal.
    adopted: journals whose usage came into this one.
    num_strays: counts of requests that no record had opened.
    """

    def __init__(self) -> None:
        self.running: dict[tuple[str, int], Running] = {}
        self.ended: dict[EndedKey, Ended] = {}
        self.adopted: dict[str, None] = {}
        self.num_bytes = 0
        self.num_strays = 0
        self._attempts: dict[tuple[str, int], int] = {}  # how many of each are in `ended`

    @property
    def num_open(self) -> int:
        """The number of attempts of which the ledger may have no row."""
        return len(self.running) + len(self._attempts)

    def apply(self, record: Record) -> None:
        """Update the state by a record of the journal."""
        match record:
            case Progressed(counts):
                for count in counts:
                    self._progress(count)
            case Opened(request_id, attempt):
                self.running[request_id, attempt] = Running(record)
            case Ended():
                ended_attempt, key = record.attempt, record.key
                self.running.pop(ended_attempt, None)
                if key not in self.ended:
                    self.ended[key] = record
                    self.num_bytes += _num_bytes(record)
                    self._attempts[ended_attempt] = self._attempts.get(ended_attempt, 0) + 1
            case Copied(keys):
                for key in keys:
                    self._forget(key)
            case Adopted(journal_ids):
                self.adopted.update(dict.fromkeys(journal_ids))
            case Released(journal_ids):
                for journal_id in journal_ids:
                    self.adopted.pop(journal_id, None)
            case Begun():
                pass

    def snapshot(self) -> Iterator[Record]:
        """Yield as few records as possible that produce the same state."""
        if self.adopted:
            yield Adopted(list(self.adopted))
        yield from self.ended.values()
        for running in self.running.values():
            yield running.opened
        counts = [
            Count(request_id, attempt, running.prompt_tokens, running.completion_tokens)
            for (request_id, attempt), running in self.running.items()
            if running.prompt_tokens or running.completion_tokens
        ]
        if counts:
            yield Progressed(counts)

    def put_last(self, key: EndedKey) -> None:
        """Move the usage with this key behind all others, so that the others are written first."""
        self.ended[key] = self.ended.pop(key)

    def _forget(self, key: EndedKey) -> None:
        ended = self.ended.pop(key, None)
        if ended is not None:
            self.num_bytes -= _num_bytes(ended)
            num_left = self._attempts.pop(ended.attempt) - 1
            if num_left:
                self._attempts[ended.attempt] = num_left

    def _progress(self, count: Count) -> None:
        running = self.running.get((count.request_id, count.attempt))
        if running is None:
            self.num_strays += 1
            return
        running.prompt_tokens = count.prompt_tokens
        running.completion_tokens = count.completion_tokens


def made_up_end(running: Running, finished_at_ns: int) -> Ended:
    """Return an end record for a request whose gateway died.

    The record has the usage that the request's client may have seen; the engine's own count, should it come, replaces
    it.

    finished_at_ns: the time of its end in Unix nanoseconds.
    """
    opened = running.opened
    usage = Usage(prompt_tokens=running.prompt_tokens, completion_tokens=running.completion_tokens)
    record = UsageRecord(opened.request_id, opened.attempt, "error", usage, opened.meter)
    return Ended(record, "", None, None, finished_at_ns)


def _num_bytes(ended: Ended) -> int:
    return ENDED_BYTES + len(ended.record.meter) + len(ended.record.request_id)
