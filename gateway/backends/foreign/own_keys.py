"""The keys of projects at one server: found for each request, and not used for a while where the server refuses one.

Each key has a breaker of its own, so that a provider is not asked again and again with a key that it does not take.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import msgspec

from gateway.domain.errors import ProviderKeyMissing, ProviderKeyRefused
from gateway.domain.pools.provider_key import ProviderKey
from gateway.domain.routing.breaker import AdmissionToken, Breaker

OwnKey = Callable[[str], Awaitable[ProviderKey | None]]
"""A function that returns the key that a project, by its id, has brought for the servers of the pool.

Raises GatewayError: when that cannot be found out.
"""

MAX_REFUSED = 1_000
"""The most projects whose refused keys are remembered; beyond that the oldest is forgotten."""


async def no_own_key(project_id: str) -> ProviderKey | None:
    """Return None: no project brings a key."""
    return None


class KeyInUse(msgspec.Struct, frozen=True):
    """A project's key, for one request."""

    owner: str
    """The id of the project."""
    key: ProviderKey
    """The key itself."""
    breaker: Breaker | None
    """The breaker of a key that the server refused before; None for a key that the server takes, as far as is known."""
    admitted: AdmissionToken | None = None
    """The breaker's permit for the request."""


class _Refused(msgspec.Struct):
    """A key that the server has refused."""

    key: ProviderKey
    breaker: Breaker
    """The breaker that decides when the key is tried again."""


class OwnKeys:
    """The keys of projects, as one gateway uses them at one server."""

    def __init__(self, find: OwnKey, pool: str) -> None:
        """Begin without refused keys. find: finds a project's key. pool: the name of the pool, for errors."""
        self._find = find
        self._pool = pool
        self._refused: OrderedDict[str, _Refused] = OrderedDict()  # by project

    async def find(self, owner: str) -> ProviderKey:
        """Return the key of a project.

        Raises ProviderKeyMissing: when the project has brought no key.
        Raises the errors of an `OwnKey`: when the key cannot be looked up.
        """
        key = await self._find(owner)
        if key is None:
            raise ProviderKeyMissing(self._pool)
        return key

    def take(self, owner: str, key: ProviderKey) -> KeyInUse:
        """Return a key for a request that is sent now; `ended` has to follow.

        Raises ProviderKeyRefused: when the server has refused the key too often of late.
        """
        known = self._refused.get(owner)
        if known is None or known.key != key:
            return KeyInUse(owner, key, None)
        admitted = known.breaker.take(_now_s())
        if admitted is None:
            raise ProviderKeyRefused(self._pool, key.hint)
        return KeyInUse(owner, key, known.breaker, admitted)

    def refused(self, used: KeyInUse) -> None:
        """Record that the server refused a key."""
        known = self._refused.get(used.owner)
        if known is None or known.key != used.key:
            known = self._refused[used.owner] = _Refused(used.key, Breaker())
            if len(self._refused) > MAX_REFUSED:
                self._refused.popitem(last=False)
        admitted = used.admitted if used.breaker is known.breaker else None
        known.breaker.failed(admitted or AdmissionToken(), _now_s())

    def accepted(self, used: KeyInUse) -> None:
        """Record that the server took a key."""
        known = self._refused.get(used.owner)
        if known is not None and known.key == used.key:
            del self._refused[used.owner]

    def ended(self, used: KeyInUse) -> None:
        """Record that a request has ended, whether or not that shows if its key is good."""
        if used.breaker is not None and used.admitted is not None:
            used.breaker.gave_up(used.admitted)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
