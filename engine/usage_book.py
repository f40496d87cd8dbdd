"""Usage that no gateway has acknowledged yet: kept, bounded, until some gateway of the same database takes it."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from engine.protocol import UsageRecord

Key = tuple[str, int]

MAX_RECORDS = 100_000
MAX_AGE_S = 24 * 3600.0


class _Entry(msgspec.Struct):
    record: UsageRecord
    database_id: str
    holder: bytes
    stored_at_s: float


class UsageBook:
    """Oldest first. A record leaves by acknowledgement, by age or by the bound; the last two are counted as dropped."""

    def __init__(self, max_records: int = MAX_RECORDS, max_age_s: float = MAX_AGE_S) -> None:
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._max_records = max_records
        self._max_age_s = max_age_s
        self.num_dropped = 0

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, record: UsageRecord, database_id: str, holder: bytes, now_s: float) -> None:
        """holder: the gateway connection the record was sent to, b"" when nobody is there to take it."""
        self._entries[(record.request_id, record.attempt)] = _Entry(record, database_id, holder, now_s)
        while len(self._entries) > self._max_records or self._oldest_age_s(now_s) > self._max_age_s:
            self._entries.popitem(last=False)
            self.num_dropped += 1

    def acknowledge(self, keys: list[Key], database_id: str) -> None:
        """Forget these; a gateway of another database cannot make a record disappear."""
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None and entry.database_id == database_id:
                del self._entries[key]

    def orphan(self, holder: bytes) -> None:
        """This gateway is gone: what it held may be taken by another."""
        for entry in self._entries.values():
            if entry.holder == holder:
                entry.holder = b""

    def adopt(self, database_id: str, holder: bytes, limit: int = 1000) -> list[UsageRecord]:
        """Hand up to `limit` orphaned records of this database to a gateway."""
        taken = []
        for entry in self._entries.values():
            if not entry.holder and entry.database_id == database_id:
                entry.holder = holder
                taken.append(entry.record)
                if len(taken) == limit:
                    break
        return taken

    def _oldest_age_s(self, now_s: float) -> float:
        if not self._entries:
            return 0.0
        return now_s - next(iter(self._entries.values())).stored_at_s
