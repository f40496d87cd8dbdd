"""A server of another maker as a backend: a driver, its connections, its condition and its requests put together.

A reply is a stranger's: its size and times are bounded, its counts are checked, and its errors go to the log alone.
Knows nothing of HTTP on the clients' side, tenants or prices.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

import msgspec

from engine.protocol import AdapterProbe, GenerateRequest, Service, Usage
from gateway.backends.base import Capabilities, Health
from gateway.backends.foreign.adapters import ServerAdapters
from gateway.backends.foreign.condition import ServerCondition
from gateway.backends.foreign.driver import Driver, Pooled, ReplicaName
from gateway.backends.foreign.failures import not_ready
from gateway.backends.foreign.own_keys import OwnKey, no_own_key
from gateway.backends.foreign.requests import ForeignRequests
from gateway.backends.foreign.server import Server
from gateway.backends.foreign.shown_text import ShownIds, ShownText
from gateway.backends.generation import Generation, Item
from gateway.backends.snapshot import EngineSnapshot
from gateway.backends.text.items import items_of
from gateway.backends.usage import UsageSink
from gateway.backends.used import UsedAmounts
from gateway.domain.errors import InvalidRequest


class ForeignBackend:
    """`ManagedBackend` over one server, usable between `start` and `stop`."""

    def __init__(
        self,
        server: Server,
        driver: Driver,
        pooled: Pooled,
        sink: UsageSink,
        authorize: Callable[[], Awaitable[str]],
        name: ReplicaName,
        own_key: OwnKey = no_own_key,
    ) -> None:
        """Prepare a backend that asks the server nothing yet.

        authorize: returns the key that the server asks for, "" for none.
        own_key: finds the keys of projects.
        """
        self._server = server
        self._pooled = pooled
        self._changed: Callable[[], None] = _do_nothing
        self._condition = ServerCondition(
            server,
            driver,
            pooled,
            authorize,
            lambda: self._changed(),
            name=name,
            listed=lambda: self._adapters.listed(),
        )
        self._adapters = ServerAdapters(
            server,
            lambda: self._condition.choice.driver.adapters,
            lambda: self._condition.info,
            name,
            max_loaded=pooled.settings.max_adapters,
            restarted=self._condition.restarted,
            changed=lambda: self._changed(),
            ask_soon=self._condition.ask_soon,
        )
        self._requests = ForeignRequests(server, pooled, sink, self._condition, self._adapters, name, self, own_key)

    def watch(self, changed: Callable[[], None], has_other: Callable[[], bool]) -> None:
        """Call `changed` whenever the result of `health` changes.

        has_other: is not asked, since a server is judged by its answers alone.
        """
        self._changed = changed

    def start(self) -> None:
        """Begin to check the server's health; the server may come later."""
        self._condition.start()

    async def stop(self) -> None:
        """Close all connections to the server; requests that still run fail."""
        await self._condition.stop()
        self._requests.cut_off()
        self._server.close()

    # requests

    @property
    def num_in_flight(self) -> int:
        """The number of this gateway's requests that are open at the server."""
        return self._requests.window.num_taken

    def generate(self, generation: Generation) -> AsyncGenerator[Item]:
        """Yield completions of one prompt, as `Backend.generate`."""
        driver = self._condition.choice.driver_for(generation)
        if not driver.takes_ids:
            return self._requests.items(generation, driver, ShownText(generation))
        deltas = self._requests.items(generation, driver, ShownIds(generation.request.request_id))
        return items_of(deltas, generation, self._pooled.model.tokenizer, self.stop_at)

    async def embed(self, request: GenerateRequest, trace: str = "") -> tuple[bytes, Usage]:
        """Refuse embeddings, which no driver offers. Requests for embeddings are refused earlier, when prepared.

        Raises InvalidRequest: when the method is called at all.
        """
        raise InvalidRequest("This model makes no embeddings.", code="unsupported_parameter")

    async def stop_at(self, request_id: str, index: int, num_kept_tokens: int) -> None:
        """End a choice whose text is complete after num_kept_tokens of its tokens; discard the rest."""
        attempt = self._requests.attempt(request_id)
        if attempt is not None:
            attempt.stopped_at[index] = num_kept_tokens

    # the life of the backend

    @property
    def is_full(self) -> bool:
        """Tell whether all places at the server are taken, or it said a moment ago that it has no room."""
        return self.num_in_flight >= self._pooled.settings.max_in_flight or self._condition.is_full

    def usual_ms(self) -> float | None:
        """Return the usual time of the server's recent answers, in milliseconds; None where there were none."""
        return self._requests.usual_ms()

    def take_used(self) -> list[UsedAmounts]:
        """Return an empty list: use is not reported to servers of other makers."""
        return []

    def report_used(self, elsewhere: dict[str, Service]) -> None:
        """Do nothing: the server knows no tenants."""

    async def acknowledge(self, keys: list[tuple[str, int]]) -> None:
        """Do nothing: the server keeps no usage."""

    def cut_off(self) -> None:
        """Take no new request, and cut the running ones off, as `Backend.cut_off`."""
        self._condition.begin_draining()
        self._requests.cut_off()
        self._changed()

    async def drain(self) -> None:
        """Take no new request; return when the running ones have ended."""
        self._condition.begin_draining()
        self._changed()
        await self._requests.window.wait_idle()

    # adapters

    async def load(self, key: str) -> None:
        """Have an adapter loaded until it is unloaded, as `Backend.load`."""
        self._condition.check_ready()
        await self._adapters.pin(key)

    async def probe(self, key: str) -> AdapterProbe:
        """Try an adapter, as `Backend.probe`.

        Raises as `Backend.probe`.
        Raises Overloaded: when the server was started without the adapter, since another server may have it.
        """
        self._condition.check_ready()
        try:
            return await self._adapters.probe(key)
        except InvalidRequest as refused:
            way = self._condition.choice.driver.adapters
            if way is not None and way.can_load:
                raise
            raise not_ready(refused.message) from None

    async def unload(self, key: str) -> None:
        """Have an adapter unloaded; a server that was started with the adapter keeps it."""
        await self._adapters.unload(key)

    async def unpin(self, key: str) -> None:
        """Let an adapter that `load` had loaded be unloaded like any other."""
        self._adapters.unpin(key)

    # the condition

    @property
    def capabilities(self) -> Capabilities:
        """The bounds of the server that are known."""
        return self._condition.capabilities

    def resident(self) -> frozenset[str]:
        """Content keys of the adapters that the server can use now."""
        return self._adapters.resident()

    def health(self) -> Health:
        """Return the state as the pipeline reads it."""
        health = self._condition.health()
        fault = self._adapters.fault
        if not (fault and health.ready):
            return health
        return msgspec.structs.replace(health, reason=f"adapters are not served: {fault}")

    def snapshot(self, model: str) -> EngineSnapshot:
        """Return the state as the dashboard shows it. model: the public name of the base model."""
        return self._condition.snapshot(model, self.num_in_flight)


def _do_nothing() -> None:
    """Do nothing: nobody watches this backend."""
