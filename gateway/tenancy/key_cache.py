"""The cache of keys that this process has looked up, good and bad. Bounded; knows nothing about the database."""

from __future__ import annotations

import datetime
from collections import OrderedDict
from collections.abc import Sequence

from gateway.domain.tenancy.addresses import Network
from gateway.domain.tenancy.principal import Principal

MAX_KNOWN = 10_000
MAX_UNKNOWN = 10_000
UNKNOWN_TTL_S = 5.0


class CachedKey:
    """A key of the database as the cache holds it; revoked and unknown keys have none.

    last_noted: the time at which its use was last noted for `last_used_at`. suspended: the kind of the suspended
    object: the key, its project or its organization; None: none is suspended. ip_allow: networks that the key may be
    used from; None: all.
    """

    __slots__ = ("expires_at", "ip_allow", "last_noted", "principal", "suspended")

    def __init__(
        self,
        principal: Principal,
        expires_at: datetime.datetime | None,
        *,
        suspended: str | None = None,
        ip_allow: Sequence[Network] | None = None,
    ) -> None:
        self.principal = principal
        self.expires_at = expires_at
        self.suspended = suspended
        self.ip_allow = ip_allow
        self.last_noted: datetime.datetime | None = None

    def usable(self, now: datetime.datetime) -> bool:
        """Tell whether the key has not expired."""
        return self.expires_at is None or now < self.expires_at


class KeyCache:
    """Keys by their full SHA-256, never by a part of it; the least recently used go first.

    generation grows with every removal: an answer that was asked for under an older one may be stale and must not be
    stored.
    """

    def __init__(self, max_known: int = MAX_KNOWN, max_unknown: int = MAX_UNKNOWN) -> None:
        self.generation = 0
        self._max_known = max_known
        self._max_unknown = max_unknown
        self._known: OrderedDict[bytes, CachedKey] = OrderedDict()
        self._digests_of: dict[str, set[bytes]] = {}  # two while a rotated key's old secret is good
        self._unknown_until: OrderedDict[bytes, float] = OrderedDict()
        self._good_before: OrderedDict[bytes, None] = OrderedDict()

    def get(self, sha256: bytes) -> CachedKey | None:
        """Return a key by its digest; None where the cache has none."""
        entry = self._known.get(sha256)
        if entry is not None:
            self._known.move_to_end(sha256)
        return entry

    def is_unknown(self, sha256: bytes, now_s: float) -> bool:
        """Tell whether a look-up failed a moment ago. now_s is the event loop's clock."""
        until = self._unknown_until.get(sha256)
        return until is not None and now_s < until

    def was_good(self, sha256: bytes) -> bool:
        """Tell whether a key was valid before the last change, and has not been looked up since.

        The holder of such a key does not guess.
        """
        return sha256 in self._good_before

    def put(self, sha256: bytes, entry: CachedKey, generation: int) -> None:
        """Cache a key that was looked up, unless keys have changed since.

        generation: the value of `generation` at the look-up.
        """
        if generation != self.generation:
            self._remember(sha256)  # it was good a moment ago
            return
        self._known[sha256] = entry
        self._good_before.pop(sha256, None)
        self._digests_of.setdefault(entry.principal.api_key_id, set()).add(sha256)
        if len(self._known) > self._max_known:
            digest, oldest = self._known.popitem(last=False)
            digests = self._digests_of[oldest.principal.api_key_id]
            digests.discard(digest)
            if not digests:
                del self._digests_of[oldest.principal.api_key_id]

    def put_unknown(self, sha256: bytes, now_s: float, generation: int) -> None:
        """Cache that no key has this digest, unless keys have changed since.

        generation: the value of `generation` at the look-up.
        """
        if generation != self.generation:
            return
        self._good_before.pop(sha256, None)
        self._unknown_until[sha256] = now_s + UNKNOWN_TTL_S
        self._unknown_until.move_to_end(sha256)
        if len(self._unknown_until) > self._max_unknown:
            self._unknown_until.popitem(last=False)

    def forget(self, api_key_id: str) -> None:
        """Remove one changed key from the cache, and all failed look-ups, since the key may be a new one."""
        self.generation += 1
        for sha256 in self._digests_of.pop(api_key_id, ()):
            if self._known.pop(sha256, None) is not None:
                self._remember(sha256)
        self._unknown_until.clear()

    def forget_of_project(self, project_id: str) -> None:
        """Remove all keys of a changed project from the cache."""
        self.generation += 1
        for sha256, entry in [*self._known.items()]:
            if entry.principal.project_id == project_id:
                del self._known[sha256]
                self._digests_of.pop(entry.principal.api_key_id, None)
                self._remember(sha256)
        self._unknown_until.clear()

    def forget_all(self) -> None:
        """Remove all keys from the cache, but remember that they were valid a moment ago (`was_good`)."""
        self.generation += 1
        for sha256 in self._known:
            self._remember(sha256)
        self._known.clear()
        self._digests_of.clear()
        self._unknown_until.clear()

    def _remember(self, sha256: bytes) -> None:
        self._good_before[sha256] = None
        if len(self._good_before) > self._max_known:
            self._good_before.popitem(last=False)

    def __len__(self) -> int:
        return len(self._known) + len(self._unknown_until)
