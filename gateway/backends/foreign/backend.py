"""A server of another maker as a backend: a driver, its connections, its condition and its requests put together.

A reply is a stranger's: its size and times are bounded, its counts are checked, and what it says of errors goes to the
log alone. Knows nothing of HTTP on the clients' side, tenants or prices.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Literal

import msgspec
import structlog

from engine.protocol import AdapterProbe, Delta, Final, GenerateRequest, Service, Usage
from gateway.backends.base import Capabilities, Health, Unanswered
from gateway.backends.foreign.attempt import Attempt
from gateway.backends.foreign.condition import ServerCondition
from gateway.backends.foreign.connection import Connection, ServerGone
from gateway.backends.foreign.driver import Driver, Look, Pooled
from gateway.backends.foreign.failures import failed, is_full, is_the_clients, not_ready, refusal
from gateway.backends.foreign.reply import BadReply, Part, ReplyRefused, ServerRefused
from gateway.backends.foreign.server import Server, read_at_most
from gateway.backends.foreign.sse import EventReader, EventTooLarge
from gateway.backends.foreign.text import TextChoice
from gateway.backends.generation import Generation, Item
from gateway.backends.snapshot import EngineSnapshot
from gateway.backends.text.items import items_of
from gateway.backends.usage import UsageSink
from gateway.backends.used import Used
from gateway.backends.window import Window
from gateway.domain.errors import BackendFailed, GatewayError, InvalidRequest, ShuttingDown
from gateway.domain.routing.breaker import Admitted
from gateway.domain.routing.foreign_usage import MAX_TOKEN_BYTES

WINDOW_WAIT_S = 2.0
"""Seconds for which a request waits until fewer than `max_in_flight` are open at the server."""

MAX_ERROR_BYTES = 16 << 10
"""Bytes of an error that are read; a larger one is cut off."""

ERROR_WITHIN_S = 5.0
"""How long the whole of an error may take."""

SPARE_EVENTS = 1024
"""Events of a reply beside four for each token that was asked for."""

SPARE_BYTES = 4096
"""Bytes of text of a reply beside MAX_TOKEN_BYTES for each token that was asked for."""

log = structlog.get_logger(__name__)


class ForeignBackend:
    """`ManagedBackend` over one server, usable between `start` and `stop`."""

    def __init__(
        self, server: Server, driver: Driver, pooled: Pooled, sink: UsageSink, authorize: Callable[[], Awaitable[str]]
    ) -> None:
        """authorize: returns the key that the server asks for, "" for none."""
        self._server = server
        self._driver = driver
        self._pooled = pooled
        self._sink = sink
        self._window = Window()
        self._window.set_limit(pooled.settings.max_in_flight)
        self._attempts: dict[str, Attempt] = {}
        self._connections: dict[str, Connection] = {}
        self._changed: Callable[[], None] = _nobody
        engine_id = f"server-{uuid.uuid4().hex[:16]}"
        self._condition = ServerCondition(server, driver, pooled, engine_id, authorize, lambda: self._changed())

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever `health` has changed."""
        self._changed = changed

    def start(self) -> None:
        """Begin to look at the server, which may come later."""
        self._condition.start()

    async def stop(self) -> None:
        """Close all connections; what still runs fails."""
        await self._condition.stop()
        self._cut_all()
        self._server.close()

    # requests

    @property
    def num_in_flight(self) -> int:
        """How many requests of this gateway are open at the server."""
        return self._window.num_taken

    def generate(self, generation: Generation) -> AsyncGenerator[Item]:
        """Yield completions of one prompt, as `Backend.generate`."""
        if self._driver.takes_ids:
            return items_of(self._deltas(generation), generation, self._pooled.model.tokenizer, self.stop_at)
        return self._items(generation)

    async def embed(self, request: GenerateRequest) -> tuple[bytes, Usage]:
        """Raises InvalidRequest: no driver asks for embeddings, which the preparation of requests says first."""
        raise InvalidRequest("This model makes no embeddings.", code="unsupported_parameter")

    async def stop_at(self, request_id: str, index: int, num_kept_tokens: int) -> None:
        """End a choice whose text is complete after num_kept_tokens of its tokens; discard the rest."""
        attempt = self._attempts.get(request_id)
        if attempt is not None:
            attempt.kept[index] = num_kept_tokens

    async def _items(self, generation: Generation) -> AsyncGenerator[Item]:
        """Yield pieces of text as they come, then the usage."""
        choices = [TextChoice(index, generation.stop) for index in range(generation.request.n)]
        request_id = generation.request.request_id
        async with aclosing(self._parts(generation)) as steps:
            async for step in steps:
                if isinstance(step, Usage):
                    yield step
                    return
                pieces, attempt = [], self._attempts[request_id]
                for part in step:
                    choice = choices[part.index]
                    piece = choice.push(part, attempt.count(part.index))
                    if piece is not None:
                        pieces.append(piece)
                        if choice.is_stopped:
                            attempt.kept[part.index] = attempt.count(part.index)
                if pieces:
                    yield pieces

    async def _deltas(self, generation: Generation) -> AsyncGenerator[list[Delta] | Final]:
        """Yield token ids as they come, then the final, as our own engine does."""
        request_id = generation.request.request_id
        async with aclosing(self._parts(generation)) as steps:
            async for step in steps:
                if isinstance(step, Usage):
                    yield Final(request_id, "stop", step)
                    return
                attempt = self._attempts[request_id]
                yield [
                    Delta(
                        request_id,
                        part.token_ids,
                        attempt.count(part.index),
                        part.index,
                        part.logprobs,
                        part.finish_reason,
                    )
                    for part in step
                ]

    async def _parts(self, generation: Generation) -> AsyncGenerator[list[Part] | Usage]:
        """Yield the parts of the reply that came since the last item, then exactly one Usage, which is recorded.

        Closing the generator cuts the connection off; what was used by then is recorded all the same.
        Raises as `Backend.generate`.
        """
        look, admitted = await self._take_place()
        attempt = Attempt(generation, self._sink, self, self._condition.engine_id, is_exact=self._driver.takes_ids)
        request_id = attempt.request.request_id
        self._attempts[request_id] = attempt
        is_said = is_handed_over = False  # to the breaker; to who catches Unanswered, and says what is recorded
        try:
            attempt.dispatched()
            async with aclosing(self._stream(generation, attempt, look)) as steps:
                async for parts in steps:
                    yield parts
            usage = attempt.record(is_whole=True)
            is_said = True
            self._condition.succeeded(admitted, is_lie=attempt.is_lie)
            yield usage
        except ServerRefused as refused:
            is_said = True
            is_handed_over = True
            raise self._refused(attempt, admitted, refused) from None
        except ReplyRefused as refused_reply:
            is_handed_over = True
            log.warning("reply_refused", request_id=request_id, why=str(refused_reply))
            raise self._unanswered(attempt, failed(), "failed") from None
        except (ServerGone, BadReply, EventTooLarge) as error:
            if attempt.is_cut_off:
                raise ShuttingDown from None
            is_said = is_handed_over = True
            self._condition.failed(admitted, str(error) or "an event of its reply is too large", request_id)
            raise self._unanswered(attempt, failed()) from None
        finally:
            if not is_said:
                self._condition.breaker.gave_up(admitted)
            if not (attempt.is_recorded or is_handed_over):  # the client left, or this gateway stops
                attempt.record(is_whole=False)
            self._attempts.pop(request_id, None)
            self._window.give()

    async def _stream(self, generation: Generation, attempt: Attempt, look: Look) -> AsyncGenerator[list[Part]]:
        """Yield the parts of the reply.

        Raises ServerGone, ServerRefused, BadReply, ReplyRefused or EventTooLarge.
        """
        settings, request = self._pooled.settings, attempt.request
        loop = asyncio.get_running_loop()
        until_s = loop.time() + settings.total_seconds
        part_until_s = min(until_s, loop.time() + settings.first_token_seconds)
        asked = self._driver.request(generation, look)

        def sent(connection: Connection) -> None:
            self._connections[request.request_id] = connection
            if attempt.is_cut_off:  # while it was being connected
                connection.cut("this gateway stops")

        connection = None
        has_ended = False
        try:
            connection = await self._server.ask(
                "POST",
                asked.path,
                asked.body,
                request_id=f"{request.request_id}.{request.attempt}" if request.attempt else request.request_id,
                until_s=part_until_s,
                sent=sent,
            )
            if connection.status != 200:
                raise await _refusal_of(connection, min(until_s, loop.time() + ERROR_WITHIN_S))
            if not connection.headers.get("content-type", "").startswith("text/event-stream"):
                raise BadReply("its reply is no stream of events")
            reader, events = self._driver.reader(generation), EventReader()
            most_tokens = request.n * request.sampling.max_tokens
            left_events, most_bytes = 4 * most_tokens + SPARE_EVENTS, MAX_TOKEN_BYTES * most_tokens + SPARE_BYTES
            is_end = False
            while not is_end:
                data = await connection.read(part_until_s)
                if loop.time() > part_until_s:  # such as by comments alone
                    raise ServerGone("its next part does not come in time", has_begun=True)
                found = events.push(data) if data else events.finish()
                is_end = not data
                parts: list[Part] = []
                told = None
                for each in found:
                    event = reader.read(each)
                    parts += [part for part in event.parts if part.index not in attempt.finished]
                    told = event.told or told
                    is_end = is_end or event.is_end
                left_events -= len(found)
                if left_events < 0:
                    raise BadReply("its reply has too many events")
                if parts:
                    attempt.add(parts)
                if told is not None:
                    attempt.tell(told)
                if parts:
                    if attempt.num_text_bytes > most_bytes:
                        raise BadReply("its reply is longer than was asked for")
                    yield parts
                    if attempt.kept and attempt.is_complete:
                        return  # the stop strings have ended all choices
                    part_until_s = min(until_s, loop.time() + settings.idle_seconds)
            if not attempt.is_complete:
                raise BadReply("its reply ended before the choices did")
            has_ended = True
        finally:
            self._connections.pop(request.request_id, None)
            if connection is not None:
                self._server.give(connection, has_ended=has_ended)

    async def _take_place(self) -> tuple[Look, Admitted]:
        """Take a place in the window. Raises Unanswered: when the server is not ready, or has no place in time."""
        self._condition.check()
        try:
            await self._window.take(WINDOW_WAIT_S)
        except TimeoutError:
            raise Unanswered(not_ready("every place at the server is taken"), "full") from None
        try:
            return self._condition.take()
        except Unanswered:
            self._window.give()
            raise

    def _refused(self, attempt: Attempt, admitted: Admitted, refused: ServerRefused) -> Unanswered:
        """Return what the reader catches where the server refused a request or failed at it."""
        error = refusal(refused)
        if is_the_clients(refused) and not attempt.has_begun:
            self._condition.succeeded(admitted, is_lie=False)
            return self._unanswered(attempt, error, "failed")
        if is_full(refused):
            self._condition.breaker.gave_up(admitted)
            return self._unanswered(attempt, error, "full")
        self._condition.failed(admitted, str(refused), attempt.request.request_id)
        return self._unanswered(attempt, failed())

    def _unanswered(
        self, attempt: Attempt, error: GatewayError, kind: Literal["full", "died", "failed"] = "died"
    ) -> Unanswered:
        """Return what the reader catches where another server or model may be asked; it says what is recorded."""

        def record() -> None:
            attempt.record(is_whole=False)

        return Unanswered(error, kind, was_sent=True, settle=record, supersede=attempt.supersede)

    # the life of the backend

    def take_used(self) -> list[Used]:
        """Return nothing: other servers are not told what this one did for whom."""
        return []

    def tell_used(self, elsewhere: dict[str, Service]) -> None:
        """Tell nothing: the server knows no tenants."""

    async def acknowledge(self, keys: list[tuple[str, int]]) -> None:
        """Do nothing: the server keeps no usage."""

    def cut_off(self) -> None:
        """Take no new request, and cut the running ones off, as `Backend.cut_off`."""
        self._condition.begin_draining()
        self._cut_all()
        self._changed()

    def _cut_all(self) -> None:
        for attempt in self._attempts.values():
            attempt.is_cut_off = True
        for connection in list(self._connections.values()):
            connection.cut("this gateway stops")

    async def drain(self) -> None:
        """Take no new request; return when the running ones have ended."""
        self._condition.begin_draining()
        self._changed()
        await self._window.wait_idle()

    # adapters

    async def load(self, key: str) -> None:
        """Raises InvalidRequest: where the server has no such adapter, and cannot be told to load one."""
        self._check_has(key)

    async def probe(self, key: str) -> AdapterProbe:
        """Raises InvalidRequest: where the server has no such adapter."""
        self._check_has(key)
        raise BackendFailed("Adapters of this server cannot be tried.")

    async def unload(self, key: str) -> None:
        """Do nothing: the server keeps what it was started with."""

    async def unpin(self, key: str) -> None:
        """Do nothing: the server keeps what it was started with."""

    def _check_has(self, key: str) -> None:
        if key not in self.resident():
            raise InvalidRequest("The server that runs this model does not have the adapter.", param="model")

    # the condition

    @property
    def capabilities(self) -> Capabilities:
        """The bounds of the server, as far as they are known."""
        return self._condition.capabilities

    def resident(self) -> frozenset[str]:
        """Content keys of the adapters that the server can use now."""
        look = self._condition.look
        return look.adapters if look is not None else frozenset()

    def health(self) -> Health:
        """Return the state as the pipeline reads it."""
        return self._condition.health()

    def snapshot(self, model: str) -> EngineSnapshot:
        """Return the state as the dashboard shows it. model: the public name of the base model."""
        return self._condition.snapshot(model, self.num_in_flight)


class _ErrorBody(msgspec.Struct, frozen=True):
    error: _Error | str | None = None


class _Error(msgspec.Struct, frozen=True):
    code: str | int | None = None
    type: str | None = None


_TOO_LONG = frozenset({"context_length_exceeded", "exceed_context_size_error"})
"""Codes and types of errors by which OpenAI's servers and llama.cpp's say that a prompt is too long."""

_decode_error = msgspec.json.Decoder(_ErrorBody).decode


async def _refusal_of(connection: Connection, until_s: float) -> ServerRefused:
    """Return what a response other than 200 says: its status, its known code, and when to come again."""
    code, after_s = "", None
    try:
        body = await read_at_most(connection, MAX_ERROR_BYTES, until_s)
        error = _decode_error(body).error
        if isinstance(error, _Error) and not _TOO_LONG.isdisjoint((error.code, error.type)):
            code = "context_length_exceeded"
    except (ServerGone, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    text = connection.headers.get("retry-after", "")
    if text.isascii() and text.isdigit() and len(text) < 6:
        after_s = float(text)
    return ServerRefused(connection.status, code, retry_after_s=after_s)


def _nobody() -> None:
    """Tell nobody: nobody watches this backend."""
