"""Our engine as a backend: its link, its condition, its requests and its adapters put together.

Knows nothing of HTTP, tenants or prices.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec
import zmq

from engine.curve import Peer
from engine.protocol import (
    AckUsage,
    AdapterProbe,
    AdapterStatus,
    Delta,
    EngineError,
    EngineMessage,
    EngineStats,
    Final,
    GenerateRequest,
    Heartbeat,
    LoadAdapter,
    Service,
    StepOutputs,
    UnackedUsage,
    UnloadAdapter,
    Usage,
    Welcome,
)
from gateway.backends.base import Capabilities, Health
from gateway.backends.engine.adapter_calls import AdapterCalls
from gateway.backends.engine.condition import EngineCondition
from gateway.backends.engine.failures import failure, not_ready
from gateway.backends.engine.link import EngineGone, EngineLink
from gateway.backends.engine.model import EngineModel
from gateway.backends.engine.recorder import UsageRecorder
from gateway.backends.engine.requests import EngineRequests
from gateway.backends.generation import Generation, Item
from gateway.backends.snapshot import EngineSnapshot
from gateway.backends.text.items import items_of
from gateway.backends.usage import UsageSink
from gateway.backends.used import UsedAmounts
from gateway.domain.errors import BackendFailed, InvalidRequest
from gateway.support.paced_calls import PacedCalls

GIVE_UP_S = 10.0
"""Seconds that an engine that is there again may take to hand over usage. It ends the requests of a gateway that it has
not heard of for a few seconds, and hands their usage to whoever is connected then."""

FULL_FOR_S = 5.0
"""Seconds for which more than MAX_UNREAD_BYTES may wait for a stream's reader before the stream is ended."""

ACKNOWLEDGE_EVERY_S = 0.1
"""Seconds between two messages that acknowledge durable usage to the engine.

The engine keeps such records until then, and hands them over again where they were never acknowledged.
"""

ADAPTER_WAIT_S = 60.0
"""Seconds that an engine may take to load or unload an adapter."""


class EngineBackend:
    """`Backend` over one engine process at a ZeroMQ endpoint. Usable between `start` and `stop`."""

    def __init__(
        self,
        endpoint: str,
        *,
        database_id: str,
        model: EngineModel,
        sink: UsageSink,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
        give_up_s: float = GIVE_UP_S,
        full_for_s: float = FULL_FOR_S,
        peer: Peer | None = None,
        batch_turns: PacedCalls | None = None,
    ) -> None:
        """Make the backend of an engine, with no connection yet.

        context: the ZeroMQ context, whose links share one thread; None: a context of this link alone.
        give_up_s: seconds that an engine which is there again may take to hand over the usage of lost requests.
        full_for_s: seconds for which more than `MAX_UNREAD_BYTES` may wait for the reader of a stream.
        batch_turns: the turns in which lines of batches end; None: turns of this engine's lines alone.
        peer: the keys for an endpoint that is guarded by keys; None: the endpoint is a socket of this machine.
        """
        self._link = EngineLink(
            endpoint,
            database_id=database_id,
            model_digest=model.digest,
            listener=self,
            context=context,
            peer=peer,
            has_other=lambda: self._has_other(),
        )
        self._model = model
        self._sink = sink
        self._condition = EngineCondition(model, self._link)
        self._recorder = UsageRecorder(sink, self, give_up_s)
        self._requests = EngineRequests(
            self._link.send,
            self._condition,
            self._recorder,
            sink,
            full_for_s=full_for_s,
            batch_turns=batch_turns or PacedCalls(),
        )
        self._adapter_calls = AdapterCalls(self._link.send)
        self._durable: list[tuple[str, int]] = []
        self._batch_credit = 0
        self._changed: Callable[[], None] = _do_nothing
        self._has_other: Callable[[], bool] = lambda: True

    def watch(self, changed: Callable[[], None], has_other: Callable[[], bool]) -> None:
        """Set the functions of the pool that the backend calls from now on, as `ManagedBackend.watch`.

        changed: called whenever the result of `health` changes. has_other: tells whether another backend of the pool
        serves while this one does not.
        """
        self._changed, self._has_other = changed, has_other

    def start(self) -> None:
        """Begin to connect; the engine may come later."""
        self._link.start()

    async def stop(self) -> None:
        """End the conversation with the engine; requests that still run fail."""
        self._acknowledge_durable()
        await self._link.stop()
        self._recorder.stop()

    # requests

    @property
    def num_in_flight(self) -> int:
        """The requests of this gateway that are on the engine."""
        return self._requests.window.num_taken

    def generate(self, generation: Generation) -> AsyncGenerator[Item]:
        """Yield completions of one prompt, as `Backend.generate`."""
        request = self._condition.without_unknown_thinking(generation.request)
        if request is not generation.request:
            generation = msgspec.structs.replace(generation, request=request)
        can_stop_here = bool(generation.stop) or generation.tools is not None  # each token is looked at when it comes
        deltas = self._requests.deltas(request, generation.trace, is_whole=generation.is_whole and not can_stop_here)
        return items_of(deltas, generation, self._model.tokenizer, self.stop_at)

    async def embed(self, request: GenerateRequest, trace: str = "") -> tuple[bytes, Usage]:
        """Return the embedding of one prompt, as `Backend.embed`.

        trace: the header `traceparent`; "": none.
        """
        async with aclosing(self.deltas(request, trace)) as items:
            async for item in items:
                if isinstance(item, Final) and item.embedding is not None:
                    return item.embedding, item.usage
        raise BackendFailed("The engine returned no embedding for the request.")

    def deltas(self, request: GenerateRequest, trace: str = "") -> AsyncGenerator[list[Delta] | Final]:
        """Yield the token ids of one request, as `EngineRequests.deltas`.

        trace: the header `traceparent`; "": none.
        """
        return self._requests.deltas(request, trace)

    async def stop_at(self, request_id: str, index: int, num_kept_tokens: int) -> None:
        """End a choice whose text is complete after num_kept_tokens of its tokens (a stop string); discard the rest."""
        self._requests.stop_at(request_id, index, num_kept_tokens)

    @property
    def is_full(self) -> bool:
        """Tell whether a request would have to wait for a place in the engine's window."""
        return self.num_in_flight >= self.capabilities.max_in_flight

    def take_batch_credit(self) -> bool:
        """Take one of the batch choices that the engine's last heartbeat allows; return False where none is left."""
        if self._batch_credit <= 0 or not self.health().ready:
            return False
        self._batch_credit -= 1
        return True

    def usual_ms(self) -> float | None:
        """Return None: heartbeats tell how full the engine is."""
        return None

    def oldest_wait_s(self) -> float:
        """Return the age of the oldest request of this gateway that has no token yet; 0 where none waits."""
        return self._requests.oldest_wait_s()

    def take_used(self) -> list[UsedAmounts]:
        """Return the amounts that this gateway's requests used on the engine since the last call."""
        return self._requests.take_used()

    def report_used(self, elsewhere: dict[str, Service]) -> None:
        """Tell the engine what this gateway's requests used on other engines of the pool, by tenant."""
        with contextlib.suppress(EngineGone):  # then nobody is served there
            self._link.send(Heartbeat(0, elsewhere=elsewhere))

    async def acknowledge(self, keys: list[tuple[str, int]]) -> None:
        """Tell the engine soon that usage is durable, as `Acknowledged.acknowledge`."""
        if not self._durable:
            asyncio.get_running_loop().call_later(ACKNOWLEDGE_EVERY_S, self._acknowledge_durable)
        self._durable += keys

    def _acknowledge_durable(self) -> None:
        keys, self._durable = self._durable, []
        # Without an engine there is nobody to tell: one that comes back hands its records over again.
        with contextlib.suppress(EngineGone):
            if keys:
                self._link.send(AckUsage(keys))

    def cut_off(self) -> None:
        """Take no new request, and abort the running ones, as `Backend.cut_off`."""
        self._condition.begin_draining()
        self._changed()
        self._requests.cut_off()

    async def drain(self) -> None:
        """Take no new request; return when the running ones have ended."""
        self._condition.begin_draining()
        self._changed()
        await self._requests.window.wait_idle()

    # adapters

    async def load(self, key: str) -> None:
        """Make an adapter resident until it is unloaded, as `Backend.load`."""
        status = await self._ask_about_adapter(LoadAdapter(key))
        if not status.resident:
            raise InvalidRequest("The engine did not load the adapter of the model.", param="model")

    async def probe(self, key: str) -> AdapterProbe:
        """Try an adapter, as `Backend.probe`."""
        status = await self._ask_about_adapter(LoadAdapter(key, pin=False, probe=True))
        assert status.probe is not None, "the protocol: an error or a probe"
        return status.probe

    async def unload(self, key: str) -> None:
        """Take an adapter off the device."""
        await self._ask_about_adapter(UnloadAdapter(key))

    async def unpin(self, key: str) -> None:
        """Let an adapter that `load` made resident be evicted like any other."""
        await self._ask_about_adapter(UnloadAdapter(key, evict=False))

    async def _ask_about_adapter(self, command: LoadAdapter | UnloadAdapter) -> AdapterStatus:
        try:
            status = await self._adapter_calls.ask(command, ADAPTER_WAIT_S)
        except EngineGone as gone:
            raise not_ready(str(gone)) from None
        except TimeoutError:
            raise BackendFailed("The engine did not load or unload the adapter in time.") from None
        if status.error is not None:
            raise failure(EngineError(status.code or "adapter_rejected", status.error))
        return status

    # the engine's condition

    @property
    def capabilities(self) -> Capabilities:
        """The bounds that the engine reported when it was connected last; before that, the bounds of the model."""
        return self._condition.capabilities

    def resident(self) -> frozenset[str]:
        """Content keys of the adapters that are on the device now."""
        return self._condition.resident

    def health(self) -> Health:
        """Return the state as the pipeline reads it."""
        return self._condition.health()

    def snapshot(self, model: str) -> EngineSnapshot:
        """Return the state as the dashboard shows it. model: the public name of the base model."""
        return self._condition.snapshot(model)

    # calls of the link

    def connected(self, welcome: Welcome) -> None:
        """Accept requests for an engine that has connected."""
        self._condition.connected(welcome)
        self._requests.window.set_limit(welcome.credits)
        self._recorder.give_up_later()
        self._changed()

    def received(self, message: EngineMessage) -> None:
        """Pass a message of the engine on to the part that the message is for."""
        match message:
            case StepOutputs(deltas, finals):
                self._requests.deliver(deltas)
                self._requests.end(finals)
            case Heartbeat(stats=EngineStats() as stats, batch_credit=batch_credit):
                self._batch_credit = batch_credit
                self._condition.heartbeat(stats, asyncio.get_running_loop().time())
                self._changed()
            case AdapterStatus(key, resident):
                self._condition.adapter_moved(key, is_resident=resident)
                self._adapter_calls.answered(message)
            case UnackedUsage(records):
                engine_id = self._condition.engine_id
                for record in records:
                    self._sink.record(record, engine_id=engine_id, source=self, ttft_ms=None, latency_ms=None)

    def disconnected(self, reason: str) -> None:
        """End every open request with the tokens that this gateway saw of it."""
        self._condition.disconnected()
        self._changed()
        self._requests.lose_all(reason)
        self._adapter_calls.lost(lambda: not_ready(reason))


def _do_nothing() -> None:
    """Do nothing: nobody watches this backend."""
