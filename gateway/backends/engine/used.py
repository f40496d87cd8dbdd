"""Counts what the requests of one gateway used on one engine, to be reported to the pool's other engines.

Knows neither the link nor other engines; `gateway.domain.balancing.service` says what the amounts are for.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.protocol import Usage
from gateway.backends.engine.stream import EngineStream
from gateway.backends.used import UsedAmounts


class UseCounter:
    """Counts the use of each request on one engine once, from the first `take` on."""

    def __init__(self) -> None:
        self._is_asked = False
        self._ended: list[UsedAmounts] = []

    def ended(self, stream: EngineStream, usage: Usage) -> None:
        """Count the tokens of an ended request beyond those that were counted before.

        usage: the engine's own count, or the one that this gateway saw.
        """
        if self._is_asked:
            request = stream.request
            generated = usage.completion_tokens + usage.discarded_tokens
            self._ended.append(
                UsedAmounts(
                    request.tenant,
                    request.weight,
                    usage.prompt_tokens - usage.cached_tokens,
                    max(0, generated - stream.num_used),
                    usage.adapter_load_bytes,
                )
            )
            stream.num_used = max(generated, sum(stream.counts))

    def take(self, running: Iterable[EngineStream]) -> list[UsedAmounts]:
        """Return the amounts used since the last call, by running requests and by those that have ended."""
        used, self._ended, self._is_asked = self._ended, [], True
        for stream in running:
            count = sum(stream.counts)
            if count > stream.num_used:
                request = stream.request
                used.append(UsedAmounts(request.tenant, request.weight, 0, count - stream.num_used, 0))
                stream.num_used = count
        return used
