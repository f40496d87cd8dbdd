"""Our engine as a backend: requests over an engine link, within its window, with the usage of each recorded once.

Knows nothing of HTTP, tenants or prices; `EngineLink` knows how the conversation itself is kept up.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Literal

import msgspec
import zmq

from engine.protocol import (
    Abort,
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
    Submit,
    UnackedUsage,
    UnloadAdapter,
    Usage,
    UsageRecord,
    Welcome,
)
from gateway.backends.base import Health, Unanswered
from gateway.backends.engine.adapter_calls import AdapterCalls
from gateway.backends.engine.backlog import Backlog
from gateway.backends.engine.link import EngineGone, EngineLink
from gateway.backends.engine.model import MAX_CHOICES, EngineModel
from gateway.backends.engine.snapshot import EngineSnapshot, State, Trend
from gateway.backends.engine.stream import EngineStream
from gateway.backends.engine.text import items_of
from gateway.backends.engine.used import UseCounter, Used
from gateway.backends.engine.window import Window
from gateway.backends.generation import Generation, Item
from gateway.backends.usage import Count, UsageSink
from gateway.domain.errors import (
    ENGINE_UNAVAILABLE,
    SHUTTING_DOWN,
    BackendFailed,
    GatewayError,
    InvalidRequest,
    Overloaded,
    ReadTooSlowly,
    ShuttingDown,
)

WINDOW_WAIT_S = 2.0
GIVE_UP_S = 10.0
"""After an engine is there again. It ends the requests of a gateway that it has not heard of for a few seconds, and
hands their usage to whoever is connected then."""

FULL_FOR_S = 5.0
"""How long more than MAX_UNREAD_BYTES may wait for the reader of a stream."""

ADAPTER_WAIT_S = 60.0
RETRY_AFTER_S = 1.0


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
    ) -> None:
        self._link = EngineLink(
            endpoint, database_id=database_id, model_digest=model.digest, listener=self, context=context
        )
        self._model = model
        self._sink = sink
        self._give_up_s = give_up_s
        self._full_for_s = full_for_s
        self._welcome: Welcome | None = None
        self.capabilities = model.capabilities
        """The bounds as the engine said them when it was connected last; the model's own before that."""
        self._connected = False
        self._draining = False
        self._stats: EngineStats | None = None
        self._trend = Trend()
        self._since = int(time.time())
        self._resident: frozenset[str] = frozenset()
        self._streams: dict[str, EngineStream] = {}
        self._window = Window()
        self._adapter_calls = AdapterCalls(self._link.send)
        self._lost_ids: list[str] = []
        self._has_stopped = False
        self._used = UseCounter()
        self._changed: Callable[[], None] = _nobody

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever `health` has changed or says something newer."""
        self._changed = changed

    def take_used(self) -> list[Used]:
        """Return what this gateway's requests used there since the last call."""
        return self._used.take(self._streams.values())

    def tell_used(self, elsewhere: dict[str, Service]) -> None:
        """Tell the engine what this gateway's requests used on other engines of the pool, by tenant."""
        with contextlib.suppress(EngineGone):  # then nobody is served there
            self._link.send(Heartbeat(0, elsewhere=elsewhere))

    def start(self) -> None:
        """Begin to connect; the engine may come later."""
        self._link.start()

    async def stop(self) -> None:
        """End the conversation; what still runs fails."""
        await self._link.stop()
        self._has_stopped = True
        self._give_up_later()

    # what the pipeline asks

    @property
    def _is_ready(self) -> bool:
        return self._connected and not self._draining

    @property
    def _engine_id(self) -> str:
        assert self._welcome is not None
        return self._welcome.engine_id

    @property
    def num_in_flight(self) -> int:
        return self._window.num_taken

    def generate(self, generation: Generation) -> AsyncGenerator[Item]:
        return items_of(self.deltas(generation.request), generation, self._model.tokenizer, self.stop_at)

    async def embed(self, request: GenerateRequest) -> tuple[bytes, Usage]:
        async with aclosing(self.deltas(request)) as items:
            async for item in items:
                if isinstance(item, Final) and item.embedding is not None:
                    return item.embedding, item.usage
        raise BackendFailed("The engine returned no embedding for the request.")

    async def deltas(self, request: GenerateRequest) -> AsyncGenerator[list[Delta] | Final]:
        """Yield the deltas that came since the last item, then exactly one Final.

        Closing the generator early aborts the request; its usage reaches the sink all the same.

        Raises InvalidRequest, BackendFailed, Unanswered: as `generate`.
        Raises ReadTooSlowly: when more waited for the reader than is kept.
        """
        await self._take_credit()
        engine_id = self._engine_id
        now_s = asyncio.get_running_loop().time()
        stream = EngineStream(request, engine_id, now_s, [0] * request.n, backlog=Backlog(request.n))
        self._streams[request.request_id] = stream
        self._sink.dispatched(request, engine_id)  # before any engine can work on it, whoever dies in between
        try:
            self._link.send(Submit(request))
        except EngineGone as gone:
            self._lose(stream, str(gone))
        try:
            while not isinstance(item := await stream.take(), Final):
                yield item
            if stream.lost or (item.error is not None and item.error.code in ("queue_full", "draining")):
                raise self._unanswered(stream, item)  # to be settled by whoever catches it
            final = self._settle(stream, item)
        finally:
            self._leave(stream)
        if final.error is not None:
            raise _failure(final.error)
        if stream.unread:
            raise ReadTooSlowly("The client read the reply too slowly, so the reply ended early.")
        yield final

    async def stop_at(self, request_id: str, index: int, num_kept_tokens: int) -> None:
        """End a choice whose text is complete after num_kept_tokens of its tokens (a stop string); discard the rest."""
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.kept[index] = num_kept_tokens
            self._abort(stream, Abort(request_id, num_kept_tokens, index))

    async def load(self, key: str) -> None:
        status = await self._ask_about_adapter(LoadAdapter(key))
        if not status.resident:
            raise InvalidRequest("The engine did not load the adapter of the model.", param="model")

    async def probe(self, key: str) -> AdapterProbe:
        status = await self._ask_about_adapter(LoadAdapter(key, pin=False, probe=True))
        assert status.probe is not None, "the protocol: an error or a probe"
        return status.probe

    async def unload(self, key: str) -> None:
        await self._ask_about_adapter(UnloadAdapter(key))

    async def unpin(self, key: str) -> None:
        await self._ask_about_adapter(UnloadAdapter(key, evict=False))

    def resident(self) -> frozenset[str]:
        return self._resident

    def health(self) -> Health:
        detail = "draining" if self._draining else self._link.detail
        engine_id = self._welcome.engine_id if self._welcome is not None else ""
        return Health(self._is_ready, detail, self._stats, self._link.endpoint, engine_id)

    def snapshot(self, model: str) -> EngineSnapshot:
        """model: public id of the base model."""
        health, welcome = self.health(), self._welcome
        state: State = "unreachable" if not self._connected else "draining" if self._draining else "ready"
        return EngineSnapshot(
            id=health.engine_id,
            model=model,
            state=state,
            detail=health.detail,
            since=self._since,
            stats=self._stats,
            limits=welcome.limits if welcome is not None and self._connected else None,
            rates=self._trend.rates,
            device=welcome.device if welcome is not None else "",
            dtype=welcome.dtype if welcome is not None else "",
            fingerprint=welcome.fingerprint if welcome is not None else "",
        )

    async def acknowledge(self, keys: list[tuple[str, int]]) -> None:
        # Without an engine there is nobody to tell: one that comes back hands its records over again.
        with contextlib.suppress(EngineGone):
            self._link.send(AckUsage(keys))

    def cut_off(self) -> None:
        self._draining = True
        self._changed()
        for stream in self._streams.values():
            stream.cut_off = ShuttingDown()
            stream.wake()

    async def drain(self) -> None:
        self._draining = True
        self._changed()
        self._since = int(time.time())
        await self._window.wait_idle()

    # what the link tells

    def connected(self, welcome: Welcome) -> None:
        self._welcome = welcome
        limits = welcome.limits
        self.capabilities = msgspec.structs.replace(
            self._model.capabilities,
            max_model_len=limits.max_model_len,
            max_choices=min(MAX_CHOICES, limits.max_num_seqs),
            max_in_flight=limits.max_num_seqs + limits.max_waiting,
            fingerprint=welcome.fingerprint,
            max_running=limits.max_num_seqs,
            block_size=limits.block_size,
        )
        self._connected = True
        self._since = int(time.time())
        self._window.set_limit(welcome.credits)
        self._give_up_later()
        self._changed()

    def received(self, message: EngineMessage) -> None:
        match message:
            case StepOutputs(deltas, finals):
                counts = [count for delta in deltas if (count := self._deliver(delta)) is not None]
                if counts:
                    self._sink.progressed(counts)  # before their readers run
                for final in finals:
                    self._end(final)
            case Heartbeat(stats=EngineStats() as stats):
                self._stats = stats
                self._trend.add(asyncio.get_running_loop().time(), stats)
                self._resident = frozenset(stats.resident_adapters)
                self._changed()
            case AdapterStatus(key, resident):
                self._resident = self._resident | {key} if resident else self._resident - {key}
                self._adapter_calls.answered(message)
            case UnackedUsage(records):
                for record in records:
                    self._sink.record(record, engine_id=self._engine_id, source=self, ttft_ms=None, latency_ms=None)

    def disconnected(self, reason: str) -> None:
        """Every open request ends here, with what this gateway saw of it: nothing, unless a token came."""
        self._connected = False
        self._since = int(time.time())
        self._stats = None
        self._trend.forget()
        self._resident = frozenset()
        self._changed()
        for stream in list(self._streams.values()):
            if stream.final_s is None:
                self._lose(stream, reason)
        self._adapter_calls.lost(_not_ready(reason))

    # one request

    def _deliver(self, delta: Delta) -> Count | None:
        """Give a delta to its stream, and return what the request has used by now."""
        stream = self._streams.get(delta.request_id)
        if stream is None:
            return None
        was_unread = stream.unread
        stream.add(delta, asyncio.get_running_loop().time(), full_for_s=self._full_for_s)
        if stream.unread and not was_unread:
            self._abort(stream, Abort(delta.request_id))
        return stream.count

    def _lose(self, stream: EngineStream, reason: str) -> None:
        """End a request whose engine is gone with what this gateway saw of it."""
        stream.lost = True
        usage = stream.usage_seen
        error = EngineError("internal", reason)
        if not usage.completion_tokens:  # nothing of the answer exists yet: it may be asked for again
            error = EngineError("draining", reason, retry_after_s=RETRY_AFTER_S)
        self._end(Final(stream.request.request_id, "error", usage, error))

    def _unanswered(self, stream: EngineStream, final: Final) -> Unanswered:
        """Return what the reader of a stream catches where its engine died or had no room."""
        assert final.error is not None
        request, has_died = stream.request, stream.lost
        self._streams.pop(request.request_id)

        def settle() -> None:
            self._settle(stream, final)

        def supersede() -> None:
            record = UsageRecord(request.request_id, request.attempt, final.finish_reason, final.usage, request.meter)
            engine_id = "" if has_died else stream.engine_id
            self._sink.superseded(record, engine_id=engine_id, source=None if has_died else self)

        kind: Literal["died", "full"] = "died" if has_died else "full"
        return Unanswered(_failure(final.error), kind, was_sent=True, settle=settle, supersede=supersede)

    def _end(self, final: Final) -> None:
        stream = self._streams.get(final.request_id)
        if stream is None:
            return
        stream.final_s = asyncio.get_running_loop().time()
        self._window.give()
        self._used.ended(stream, final.usage)
        if stream.abandoned:
            self._settle(stream, final)
        else:
            stream.final = final
            stream.wake()

    def _settle(self, stream: EngineStream, final: Final) -> Final:
        """Record the usage, once."""
        final = stream.settled(final)
        self._streams.pop(stream.request.request_id, None)
        if stream.lost:
            self._lost_ids.append(stream.request.request_id)
            if self._has_stopped:
                self._give_up_later()
        request = stream.request
        record = UsageRecord(final.request_id, request.attempt, final.finish_reason, final.usage, request.meter)
        self._sink.record(
            record,
            engine_id="" if stream.lost else stream.engine_id,
            source=None if stream.lost else self,
            ttft_ms=stream.elapsed_ms(stream.first_token_s),
            latency_ms=stream.elapsed_ms(stream.final_s),
        )
        return final

    def _give_up_later(self) -> None:
        """Wait no more, after a while, for the usage of requests whose engine was lost: it is there again and would
        have said, or this backend has nothing more to do with it."""
        if self._lost_ids:
            lost_ids, self._lost_ids = self._lost_ids, []
            asyncio.get_running_loop().call_later(self._give_up_s, self._sink.given_up, lost_ids)

    def _leave(self, stream: EngineStream) -> None:
        """The reader is gone. A request that still runs is aborted; its final settles it, whenever that comes."""
        if self._streams.get(stream.request.request_id) is not stream:
            return
        stream.abandoned = True
        if stream.final is not None:
            self._settle(stream, stream.final)
        else:
            self._abort(stream, Abort(stream.request.request_id))

    def _abort(self, stream: EngineStream, abort: Abort) -> None:
        if stream.final_s is None:
            with contextlib.suppress(EngineGone):  # then it ends by itself
                self._link.send(abort)

    async def _take_credit(self) -> None:
        self._check_ready()
        try:
            await self._window.take(WINDOW_WAIT_S)
        except TimeoutError:
            reason = "every place in the engine's queue is taken"
            error = Overloaded(f"No engine can take the request now ({reason}).", retry_after_s=RETRY_AFTER_S)
            raise Unanswered(error, "full") from None
        try:
            self._check_ready()  # still
        except Unanswered:
            self._window.give()
            raise

    def _check_ready(self) -> None:
        """Raise Unanswered where the engine takes no new requests."""
        if not self._is_ready:
            code = SHUTTING_DOWN if self._draining else ENGINE_UNAVAILABLE
            raise Unanswered(_not_ready(self.health().detail, code), "absent")

    async def _ask_about_adapter(self, command: LoadAdapter | UnloadAdapter) -> AdapterStatus:
        try:
            status = await self._adapter_calls.ask(command, ADAPTER_WAIT_S)
        except EngineGone as gone:
            raise _not_ready(str(gone)) from None
        except TimeoutError:
            raise BackendFailed("The engine did not load or unload the adapter in time.") from None
        if status.error is not None:
            raise _failure(EngineError(status.code or "adapter_rejected", status.error))
        return status


def _nobody() -> None:
    """Nobody watches this backend."""


def _not_ready(reason: str, code: str = ENGINE_UNAVAILABLE) -> Overloaded:
    return Overloaded(
        f"No engine can take the request now ({reason}). Send it again later.", code=code, retry_after_s=RETRY_AFTER_S
    )


def _failure(error: EngineError) -> GatewayError:
    match error.code:
        case "queue_full" | "draining":
            return Overloaded(
                f"The engine could not take the request ({error.message}).",
                code=ENGINE_UNAVAILABLE if error.code == "draining" else None,
                retry_after_s=error.retry_after_s or RETRY_AFTER_S,
            )
        case "invalid_request":
            return InvalidRequest(error.message, param=error.label or None, code="invalid_value")
        case "adapter_rejected":
            return InvalidRequest(error.message, param="model")
        case "internal":
            return BackendFailed(f"The engine failed while it worked on the request ({error.message}).")
