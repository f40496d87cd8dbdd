"""The border between backends, which run requests, and metering, which records what the requests used.

Knows neither how a backend runs a request nor where a usage is kept.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from engine.protocol import GenerateRequest, UsageRecord


class Count(msgspec.Struct, frozen=True, array_like=True):
    """The usage of one attempt so far: everything that its client may have seen, and nothing that the client has not
    paid for."""

    request_id: str
    attempt: int
    prompt_tokens: int
    completion_tokens: int


class UsageSink(Protocol):
    """Where a backend puts the usage of every attempt it ran, exactly once each, whoever read the stream. Nothing here
    waits."""

    def dispatched(self, request: GenerateRequest, engine_id: str) -> None:
        """Note that the attempt is on its way to where it runs: from now on its usage will be recorded."""

    def progressed(self, counts: list[Count]) -> None:
        """Tokens have come, and go to clients once this returns: as many as one message brought, at once."""

    def record(
        self,
        usage: UsageRecord,
        *,
        engine_id: str,
        source: Acknowledged | None,
        ttft_ms: float | None,
        latency_ms: float | None,
    ) -> None:
        """source is told once the usage is durable. Without one, and with "" for engine_id, it is what the backend's
        client saw of an engine that it lost, whose own record may still come. Times are the client's own: submit to
        first token, submit to final."""

    def superseded(self, usage: UsageRecord, *, engine_id: str, source: Acknowledged | None) -> None:
        """Record an attempt that another one takes the place of: nobody pays for it, whatever its engine tells later.
        engine_id, source: as of `record`."""

    def given_up(self, request_ids: Collection[str]) -> None:
        """No engine will tell any more what these have used, unless it has by now."""


class Acknowledged(Protocol):
    """Where a usage came from: it keeps the usage until told that it is durable."""

    async def acknowledge(self, keys: list[tuple[str, int]]) -> None:
        """These (request_id, attempt) usages are durable; the backend may forget them."""
