"""Usage that no gateway has acknowledged yet: kept, bounded, until some gateway of the same database has it on disk.

Also counts all usage that was ever kept, so that the sums in gateways' ledgers can be checked for completeness.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from engine.protocol import UsageRecord

Key = tuple[str, int]

MAX_RECORDS = 100_000
MAX_AGE_S = 24 * 3600.0


class _Entry(msgspec.Struct):
    """A record that no gateway has acknowledged."""

    record: UsageRecord
    database_id: str
    holder: bytes
    """The connection of the gateway that is to acknowledge the record; b"" while no gateway is."""
    stored_at_s: float
    """The time at which the record was stored, by the monotonic clock."""


class UsageBook:
    """Unacknowledged usage, oldest first.

    A record leaves by acknowledgement, by age or by the bound; the last two are counted as dropped. num_prompt_tokens,
    num_completion_tokens: the sums over all records ever kept, discarded tokens included.
    """

    def __init__(self, max_records: int = MAX_RECORDS, max_age_s: float = MAX_AGE_S) -> None:
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._orphans: dict[Key, None] = {}  # those that no gateway has been told
        self._max_records = max_records
        self._max_age_s = max_age_s
        self.num_dropped = 0
        self.num_prompt_tokens = 0
        self.num_completion_tokens = 0

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, record: UsageRecord, database_id: str, holder: bytes, now_s: float) -> None:
        """Keep a record. holder: the gateway connection it was sent to, b"" when nobody is there to take it."""
        key = record.request_id, record.attempt
        self._entries[key] = _Entry(record, database_id, holder, now_s)
        if not holder:
            self._orphans[key] = None
        self.num_prompt_tokens += record.usage.prompt_tokens
        self.num_completion_tokens += record.usage.completion_tokens + record.usage.discarded_tokens
        if len(self._entries) > self._max_records:
            self._drop_oldest()
        self.expire(now_s)

    def expire(self, now_s: float) -> None:
        """Drop the records that are too old."""
        while self._entries and now_s - next(iter(self._entries.values())).stored_at_s > self._max_age_s:
            self._drop_oldest()

    def acknowledge(self, keys: list[Key], database_id: str) -> None:
        """Forget the records of these keys; a gateway of another database cannot make a record disappear."""
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None and entry.database_id == database_id:
                del self._entries[key]
                self._orphans.pop(key, None)

    def orphan(self, holder: bytes) -> None:
        """Release the usage records that a gone gateway held, so that another gateway can take them."""
        for key, entry in self._entries.items():
            if entry.holder == holder:
                entry.holder = b""
                self._orphans[key] = None

    def adopt(self, database_id: str, holder: bytes, limit: int = 1000) -> list[UsageRecord]:
        """Hand up to `limit` orphaned records of this database to a gateway."""
        taken: list[Key] = []
        for key in self._orphans:
            if len(taken) == limit:
                break
            if self._entries[key].database_id == database_id:
                taken.append(key)
        for key in taken:
            del self._orphans[key]
            self._entries[key].holder = holder
        return [self._entries[key].record for key in taken]

    def _drop_oldest(self) -> None:
        key, _ = self._entries.popitem(last=False)
        self._orphans.pop(key, None)
        self.num_dropped += 1
