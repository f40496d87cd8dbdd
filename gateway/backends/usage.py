"""The interface between backends, which run requests, and metering, which records what the requests used.

Knows neither how a backend runs a request nor where a usage is kept.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from engine.protocol import GenerateRequest, UsageRecord


class Count(msgspec.Struct, frozen=True, array_like=True):
    """The tokens of one attempt so far that its client may have seen, and has to pay for."""

    request_id: str
    attempt: int
    prompt_tokens: int
    completion_tokens: int


class UsageSink(Protocol):
    """Takes the usage of every attempt that a backend ran, exactly once each, whoever read the stream.

    No method waits.
    """

    def dispatched(self, request: GenerateRequest, engine_id: str, *, num_prompt_tokens: int | None = None) -> None:
        """Record that an attempt is on its way to its engine, so that its usage is expected.

        num_prompt_tokens: the most tokens that the prompt may have; None: the number of the request's token ids.
        """

    def progressed(self, counts: list[Count]) -> None:
        """Record the counts of requests whose tokens came in one message, before clients get the tokens."""

    def record(
        self,
        usage: UsageRecord,
        *,
        engine_id: str,
        source: Acknowledged | None,
        ttft_ms: float | None,
        latency_ms: float | None,
        refused: bool = False,
    ) -> None:
        """Record the usage of an attempt.

        engine_id: the process that ran the attempt.
        source: acknowledges the usage once it is durable. Without a source, and with "" for engine_id, the usage is the
        part that this gateway saw of a lost engine, whose own record may still come.
        ttft_ms, latency_ms: from the submission to the first token and to the final, as this gateway saw them.
        refused: True where the engine or server cannot serve what the request asks for, which is no failure of it.
        """

    def superseded(self, usage: UsageRecord, *, engine_id: str, source: Acknowledged | None) -> None:
        """Record an attempt that another one replaces. Nobody pays for it, whatever its engine reports later.

        engine_id: the process that ran the attempt; "" where the usage is the part that this gateway saw of a lost
        engine. source: acknowledges the usage once it is durable; None: nobody waits for that.
        """

    def given_up(self, request_ids: Collection[str]) -> None:
        """Stop waiting for the engine's own record of these requests: it has come by now, or never will."""


class Acknowledged(Protocol):
    """The source of a usage, which keeps the usage until told that it is durable."""

    async def acknowledge(self, keys: list[tuple[str, int]]) -> None:
        """Forget the usages with these (request_id, attempt): they are durable."""
