"""The requests of one gateway at one server: each takes a place, is sent, read, judged and recorded once.

Knows neither text nor how the server is asked how it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Literal, TypeVar

import structlog

from gateway.backends.base import Unanswered
from gateway.backends.foreign.adapters import ServerAdapters
from gateway.backends.foreign.attempt import Attempt
from gateway.backends.foreign.condition import ServerCondition
from gateway.backends.foreign.connection import ReaderTooSlow, ServerChanged, ServerGone
from gateway.backends.foreign.driver import Driver, Pooled, ReplicaName, ServerInfo
from gateway.backends.foreign.errors import log_text
from gateway.backends.foreign.failures import (
    NOT_READY,
    is_clients_fault,
    is_full,
    not_ready,
    server_failure,
    server_refusal,
)
from gateway.backends.foreign.noted_counts import NotedCounts
from gateway.backends.foreign.own_keys import KeyInUse, OwnKey, OwnKeys
from gateway.backends.foreign.reply import AnotherModel, BadReply, Part, ReplyRefused, ServerRefused
from gateway.backends.foreign.server import Server
from gateway.backends.foreign.shown_text import Shown
from gateway.backends.foreign.sse import EventTooLarge
from gateway.backends.foreign.stream import ReplyStream
from gateway.backends.generation import Generation
from gateway.backends.usage import Acknowledged, UsageSink
from gateway.backends.window import Window
from gateway.domain.balancing.answer_times import AnswerTimes
from gateway.domain.errors import GatewayError, ProviderKeyMissing, ProviderKeyRefused, ReadTooSlowly, ShuttingDown
from gateway.domain.pools.provider_key import ProviderKey
from gateway.domain.routing.breaker import AdmissionToken

OF_KEYS = frozenset({401, 402, 403})
"""HTTP statuses by which a server refuses the key of a request, or says that nobody pays for it."""

WINDOW_WAIT_S = 2.0
"""Seconds for which a request waits until fewer than `max_in_flight` are open at the server."""

log = structlog.get_logger(__name__)

T = TypeVar("T")


class ForeignRequests:
    """The requests that are open at one server, by their ids."""

    def __init__(
        self,
        server: Server,
        pooled: Pooled,
        sink: UsageSink,
        condition: ServerCondition,
        adapters: ServerAdapters,
        name: ReplicaName,
        source: Acknowledged,
        own_key: OwnKey,
    ) -> None:
        """Begin without requests.

        source: the backend that the usage comes from. It stores no usage.
        own_key: finds the keys of projects.
        """
        self.window = Window()
        """The places for requests at the server."""
        self.window.set_limit(pooled.settings.max_in_flight)
        self._times = AnswerTimes()
        self._checked_s = 0.0
        self._server = server
        self._settings = pooled.settings
        self._sink = sink
        self._noted = NotedCounts(sink)
        self._condition = condition
        self._adapters = adapters
        self._name = name
        self._source = source
        self._own_keys = OwnKeys(own_key, name.pool)
        self._streams: dict[str, ReplyStream] = {}

    def attempt(self, request_id: str) -> Attempt | None:
        """Return the attempt, with its counts, of an open request; None where no request with this id is open."""
        stream = self._streams.get(request_id)
        return None if stream is None else stream.attempt

    def usual_ms(self) -> float | None:
        """Return the milliseconds that the server's answers took lately; None where there were none.

        A request that still waits for its answer counts with the time that it had waited at the previous call of this
        method. Its wait until now does not count: if this process stood still for a moment, all requests would seem to
        have waited for that long.
        """
        before_s, self._checked_s = self._checked_s, asyncio.get_running_loop().time()
        attempts = [each.attempt for each in self._streams.values()]
        waits_ms = [(before_s - each.began_s) * 1e3 for each in attempts if not each.has_begun]
        return self._times.usual_ms(self._checked_s, [each for each in waits_ms if each > 0])

    def cut_off(self) -> None:
        """Cut all requests off: their readers get ShuttingDown."""
        for stream in list(self._streams.values()):
            stream.cut()

    async def items(self, generation: Generation, driver: Driver, shown: Shown[T]) -> AsyncGenerator[T]:
        """Yield an item for the new parts of the reply, as `shown` makes it, then the item that ends the reply.

        The parts are those that came since the last item. The reply's usage is recorded before the last item. Closing
        the generator cuts the connection off; tokens used by then are recorded all the same. driver: the way in which
        the server is asked and read.
        Raises as `Backend.generate`.
        Raises ReadTooSlowly: when more waited for the reader than may wait.
        """
        key = generation.request.adapter
        with self._adapters.using(key):
            stream, admitted, own = await self._opened(generation, driver)
            attempt = stream.attempt
            with self._judged(stream, admitted, own):
                while True:
                    parts = await (stream.take() if attempt.has_begun or not key else self._first_parts(stream))
                    if parts is None:
                        break
                    item = shown.parts(attempt, parts)
                    if item is not None:
                        yield item
            assert attempt.usage is not None, "it was recorded as the context was left"
            yield shown.end(attempt.usage)

    async def _opened(
        self, generation: Generation, driver: Driver
    ) -> tuple[ReplyStream, AdmissionToken, KeyInUse | None]:
        """Take a place for a request that can be sent now. Raises Unanswered: when there is none."""
        self._condition.check()
        try:
            await self._adapters.ensure(generation.request.adapter)
        except GatewayError as error:
            raise Unanswered(error, "absent") from None
        self._condition.choice.check(generation, driver)
        key_found = await self._key_of(generation)
        info, admitted = await self._take_place()
        own = self._use_key(generation, key_found, admitted)
        attempt = Attempt(
            generation, self._sink, self._source, self._condition.engine_id, self._name, is_exact=driver.takes_ids
        )
        settings = self._settings
        return (
            ReplyStream(self._server, driver, settings, generation, info, attempt, self._noted, key_found),
            admitted,
            own,
        )

    @contextmanager
    def _judged(self, stream: ReplyStream, admitted: AdmissionToken, own: KeyInUse | None) -> Iterator[None]:
        """Yield to the code that reads a reply; then record the usage, judge the server, and give the place back.

        own: the project's own key that the request was sent with; None: the request was sent with the pool's key.

        Raises as `items`.
        """
        attempt, request_id = stream.attempt, stream.attempt.request.request_id
        self._streams[request_id] = stream
        is_judged = is_handed_over = False  # by the breaker; to who catches Unanswered, and says what is recorded
        try:
            attempt.dispatched()
            try:
                yield
            finally:
                stream.close()
            attempt.record("whole")
            is_judged = True
            self._times.answered(asyncio.get_running_loop().time(), *attempt.times_ms())
            self._condition.succeeded(admitted, is_false=attempt.is_false)
            if own is not None:
                self._own_keys.accepted(own)
        except ServerRefused as refused:
            is_judged = is_handed_over = True
            raise self._refused(stream, admitted, refused, own) from None
        except ReplyRefused as refused_reply:
            is_handed_over = True
            self._log("reply_refused", stream, str(refused_reply))
            raise _unanswered(attempt, server_failure(), "failed") from None
        except ReaderTooSlow:
            raise ReadTooSlowly("The client read the reply too slowly, so the reply ended early.") from None
        except ServerChanged as changed:
            is_handed_over = True
            self._log("server_changed", stream, str(changed))
            self._condition.ask_soon()
            raise _unanswered(attempt, not_ready(NOT_READY), "full") from None
        except AnotherModel as another:
            is_judged = is_handed_over = True
            self._log("server_failed", stream, str(another))
            self._adapters.distrust()
            self._condition.failed(admitted)
            raise _unanswered(attempt, server_failure()) from None
        except (ServerGone, BadReply, EventTooLarge) as error:
            if attempt.is_cut_off:
                raise ShuttingDown from None
            is_judged = is_handed_over = True
            self._log("server_failed", stream, str(error) or "an event of its reply is too large")
            self._condition.failed(admitted)
            raise _unanswered(attempt, server_failure()) from None
        finally:
            if not is_judged:
                self._condition.breaker.gave_up(admitted)
            if not (attempt.is_recorded or is_handed_over):  # the client left or did not read, or this gateway stops
                attempt.record("left")
                if not (attempt.has_begun or attempt.is_cut_off):
                    self._times.waited(asyncio.get_running_loop().time(), attempt.waited_ms)
            if own is not None:
                self._own_keys.ended(own)
            self._streams.pop(request_id, None)
            self.window.give()

    async def _key_of(self, generation: Generation) -> ProviderKey | None:
        """Return the project's own key, if the request is sent with it.

        Raises Unanswered: when the project has removed the key by now: the request is never sent with the pool's key
        instead, since nobody would be charged.
        """
        if not generation.key_owner:
            return None
        try:
            return await self._own_keys.find(generation.key_owner)
        except GatewayError as error:
            raise Unanswered(error, "failed") from None

    def _use_key(self, generation: Generation, key: ProviderKey | None, admitted: AdmissionToken) -> KeyInUse | None:
        """Count a use of the project's own key for a request that has its place; return None to use the pool's key.

        Raises Unanswered: when the server has refused the key too often of late; the place is given back.
        """
        if key is None:
            return None
        try:
            return self._own_keys.take(generation.key_owner, key)
        except GatewayError as error:
            self._condition.breaker.gave_up(admitted)
            self.window.give()
            raise Unanswered(error, "failed") from None

    async def _first_parts(self, stream: ReplyStream) -> list[Part] | None:
        """Return the next parts of a reply that has not begun, as `ReplyStream.take` does.

        An adapter that the server does not know is loaded again, once.
        """
        try:
            return await stream.take()
        except ServerRefused as refused:
            if refused.status != 404 or stream.attempt.has_begun:
                raise
            stream.close()
            self._adapters.forget(stream.adapter)
            try:
                await self._adapters.ensure(stream.adapter)
            except GatewayError:
                raise refused from None
        return await stream.take()

    async def _take_place(self) -> tuple[ServerInfo, AdmissionToken]:
        """Take a place in the server's window.

        Raises Unanswered: when the server is not ready, or has no place in time.
        """
        self._condition.check()
        try:
            await self.window.take(WINDOW_WAIT_S)
        except TimeoutError:
            raise Unanswered(not_ready("every place at the server is taken"), "full") from None
        try:
            return self._condition.take()
        except Unanswered:
            self.window.give()
            raise

    def _refused(
        self, stream: ReplyStream, admitted: AdmissionToken, refused: ServerRefused, own: KeyInUse | None
    ) -> Unanswered:
        """Return the exception for a reader where the server refused a request or failed at it.

        own: the project's own key that the request was sent with; None: the request was sent with the pool's key.
        """
        attempt, error = stream.attempt, server_refusal(refused)
        sent_key = self._server.key if stream.key is None else stream.key.secret
        text = log_text(refused.text, key=sent_key, request=stream.sent)
        if refused.status in OF_KEYS and not attempt.has_begun and self._settings.own_keys != "none":
            self._condition.breaker.gave_up(admitted)  # another project's key may be good
            if own is not None:
                self._own_keys.refused(own)
            self._log("provider_key_refused" if stream.key else "pool_key_refused", stream, str(refused), text)
            return _unanswered(attempt, self._key_error(stream), "failed")
        if is_clients_fault(refused) and not attempt.has_begun:
            self._log("request_refused", stream, str(refused), text)
            self._condition.succeeded(admitted, is_false=False)
            return _unanswered(attempt, error, "failed", "refused")
        if stream.adapter and refused.status == 404:  # it was unloaded there, and could not be loaded again
            self._log("adapter_not_there", stream, str(refused), text)
            self._condition.breaker.gave_up(admitted)
            return _unanswered(attempt, not_ready(NOT_READY), "full")
        if is_full(refused):
            self._log("server_full", stream, str(refused), text)
            self._condition.full(admitted, refused.retry_after_s)
            return _unanswered(attempt, error, "full")
        self._log("server_failed", stream, str(refused), text)
        self._condition.failed(admitted)
        return _unanswered(attempt, server_failure())

    def _key_error(self, stream: ReplyStream) -> GatewayError:
        """Return the error for a request whose key the server refuses."""
        if stream.key is not None:
            return ProviderKeyRefused(self._name.pool, stream.key.hint)
        return server_failure() if self._server.key else ProviderKeyMissing(self._name.pool)

    def _log(self, event: str, stream: ReplyStream, why: str, text: str = "") -> None:
        """Log the end of a request. text: the server's own words, as they may be shown."""
        words = {"server_text": text} if text else {}
        log.warning(event, **self._name.fields, request_id=stream.attempt.request.request_id, why=why, **words)


def _unanswered(
    attempt: Attempt,
    error: GatewayError,
    kind: Literal["full", "died", "failed"] = "died",
    outcome: Literal["failed", "refused"] = "failed",
) -> Unanswered:
    """Return the exception for a reader where another server or model may be asked.

    The reader's call of `settle` or `supersede` decides how the attempt is recorded. outcome: the outcome that `settle`
    records.
    """

    def record() -> None:
        attempt.record(outcome)

    return Unanswered(error, kind, was_sent=True, settle=record, supersede=attempt.supersede)
