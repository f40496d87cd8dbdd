"""One response's run in the background: its output goes to the log as events, and its end is one transaction.

Knows neither which responses there are nor who holds them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing

import msgspec
import structlog

from engine.protocol import Usage
from gateway.content.background_responses import BackgroundResponses, ClaimedResponse, Events
from gateway.content.stored_responses import Response
from gateway.db.ids import new_id
from gateway.db.pool import FAILURES
from gateway.domain.errors import BackendFailed, GatewayError, LimitReached, Overloaded, QuotaExceeded, ShuttingDown
from gateway.domain.tenancy.principal import Principal
from gateway.domain.tracing import names
from gateway.domain.tracing.span import Attributes
from gateway.http.error_body import unexpected_error
from gateway.observability.tracing.trace import UNTRACED, BeginTrace, context_without_spans
from gateway.openai.responses.background.request import BackgroundRequest
from gateway.openai.responses.checked_request import CheckedRequest, checked_request
from gateway.openai.responses.reply import Counts, Reply, ReplyIds, ResponseEvents, usage_of
from gateway.openai.responses.state import EarlierItems, stored_form
from gateway.openai.responses.tools import response_tools
from gateway.openai.responses.wire import CreateResponse, ResponseObject
from gateway.openai.shared.units import ExperimentFields
from gateway.pipeline.collected import Collected
from gateway.pipeline.context import RequestContext
from gateway.pipeline.pipeline import Pipeline
from gateway.pipeline.routes.trial import row_id

log = structlog.get_logger(__name__)

ENDPOINT = "/v1/responses"
NUM_BEFORE_OUTPUT = 3
"""The number of events that a response has before its output: `created`, `queued` and `in_progress`."""

EVENTS_AT_ONCE = 64
LOG_S = 0.1
"""The most events, and the most seconds, between two writes of the log while the model generates."""

MAX_RUN_S = 3600.0
MAX_WAIT_S = 24 * 3600.0
"""The seconds after which a response that has not begun fails."""

BILL_S = 4.0
BILL_POLL_S = 0.1
"""The seconds for which a response that was cut short waits for its token count in the ledger, and those between
queries."""

MAX_ROWS = 8
"""The most rows of the ledger that a response may have: one for each model that a route tried."""

AGAIN_S = 2.0
AWAY_S = 60.0
"""The seconds for which a run waits for a database that does not answer."""

FindPrincipal = Callable[[str, str], Awaitable[Principal]]
"""A function that returns the principal of a key, from the ids of its project and the key.

Raises GatewayError: when the key may not be used any more.
"""


class RunTools(msgspec.Struct, frozen=True):
    """The services that runs use, the same for all runs of a gateway."""

    pipeline: Pipeline
    background: BackgroundResponses
    earlier: EarlierItems
    principal_of: FindPrincipal
    begin_trace: BeginTrace = context_without_spans
    """The function that continues the trace of the request that queued a response."""


class ResponseLost(Exception):
    """The error of a run whose response was deleted, or taken by another gateway."""


EXPECTED: tuple[type[Exception], ...] = (ResponseLost, *FAILURES)
"""Errors of a run that are no fault of the server: the database is away, or another gateway has the response."""


class Running:
    """The run of one response that this gateway has claimed.

    `run` ends when the response has ended, or when another gateway has it.
    """

    def __init__(self, claim: ClaimedResponse, tools: RunTools) -> None:
        self.claim = claim
        self._tools = tools
        self._request = msgspec.msgpack.decode(claim.request, type=BackgroundRequest)
        self._wire = self._request.wire
        self._initial = msgspec.json.decode(claim.response, type=ResponseObject)
        self._num_logged = claim.num_events
        self._new: list[bytes] = []
        self._has_spoken = False
        self._billed_as = ""
        self._asked: CheckedRequest | None = None
        self._events = self._plain_events()
        self._speaking: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._has_ended = False
        self._is_cancelled = claim.is_cancelled
        self._is_lost = False
        self._traced = UNTRACED

    def cancel(self) -> None:
        """End the response as cancelled: the model generates no more."""
        self._is_cancelled = True
        if self._speaking is not None:
            self._speaking.cancel()

    def lose(self) -> None:
        """Stop the run without an end, since another gateway has the response."""
        self._is_lost = True
        if self._speaking is not None:
            self._speaking.cancel()

    async def run(self) -> str:
        """Run the response, with spans where its request is traced, and return its outcome."""
        self._traced = self._tools.begin_trace(self._request.traceparent, "internal")
        outcome = "left"
        try:
            outcome = await self._outcome()
            return outcome
        finally:
            if (trace := self._traced.trace) is not None:
                turn = self.claim.turn
                attributes: Attributes = {
                    names.RESPONSE_ID: turn.id,
                    names.TENANT: turn.project_id,
                    names.API_KEY_ID: self.claim.api_key_id,
                    names.OUTCOME: outcome,
                }
                trace.finish(names.BACKGROUND_RESPONSE, attributes, "failed" if outcome == "failed" else "")

    async def _outcome(self) -> str:
        try:
            logged, counts = await self._logged_before()
            if len(logged) > NUM_BEFORE_OUTPUT:
                self._has_spoken = True
                self._events.restore(logged, counts)
                self._billed_as = counts.request_id
                return await self._fail(BackendFailed("The server that ran the response has ended."))
            if not self._is_cancelled:
                self._speaking = asyncio.create_task(self._generate())
                await asyncio.wait([self._speaking])
                if not self._speaking.cancelled():
                    self._speaking.result()
                    return self._events.response.status
            if self._writing is not None:
                await asyncio.wait([self._writing])
            if self._has_ended:
                return self._events.response.status
            if self._is_lost:
                raise ResponseLost
            if not self._is_cancelled:
                return "stopped"
            if not self._events.has_begun:  # nothing was asked of the model: the response goes from queued to its end
                self._events.restore(logged, Counts())
                self._billed_as = counts.request_id
            await self._bill()
            await self._end(self._events.cancellation_events())
            return self._events.response.status
        except ResponseLost:
            return "lost"
        except GatewayError as error:
            return await self._failed(error)

    def stop(self) -> None:
        """Stop without an end: another gateway takes the response once the lease is over."""
        if self._speaking is not None:
            self._speaking.cancel()

    async def _failed(self, error: GatewayError) -> str:
        """End a response after an error, or leave it for another try if it has no output yet. Return the outcome."""
        is_early = isinstance(error, Overloaded | ShuttingDown | LimitReached) and not isinstance(error, QuotaExceeded)
        if is_early and not self._has_spoken and self.claim.age_s < MAX_WAIT_S:
            again_s = max(AGAIN_S, error.retry_after_s or 0.0)
            await self._tools.background.put_back(self.claim.turn, again_s=again_s)
            return "put_back"
        try:
            return await self._fail(error)
        except ResponseLost:
            return "lost"

    async def _fail(self, error: GatewayError) -> str:
        await self._bill()
        await self._end([*self._begun(), *self._events.failure_events(error)])
        return self._events.response.status

    async def _bill(self) -> None:
        """Wait briefly for the ledger's count of the response's tokens, and make the response show it."""
        if not self._billed_as:
            return
        turn, ids = self.claim.turn, [row_id(self._billed_as, index) for index in range(MAX_ROWS)]
        until_s = time.monotonic() + BILL_S
        while time.monotonic() < until_s and not self._is_lost:
            try:
                billed = await self._tools.background.billed(turn.project_id, ids)
            except FAILURES:
                return
            if billed is not None:
                usage = Usage(billed.prompt, billed.completion, cached_tokens=billed.cached)
                self._events.bill(usage_of(usage))
                return
            await asyncio.sleep(BILL_POLL_S)

    def _begun(self) -> list[bytes]:
        """Return the first events of the response that the log does not have yet."""
        return self._events.encode_each([])[self._num_logged :]

    async def _generate(self) -> None:
        """Generate the response, and log its output as events until it has ended. Raises as `Pipeline.complete`."""
        tools, request = self._tools, self._request
        caller = await tools.principal_of(self.claim.turn.project_id, self.claim.api_key_id)
        asked = self._asked = await checked_request(self._wire, caller, tools.earlier, tools.pipeline)
        # Each attempt is billed by itself, so that it has an id of its own.
        request_id = request.request_id if self.claim.turn.fence == 1 else new_id("req")
        run = await tools.pipeline.complete(self._context(caller, asked, request_id), [asked.request])
        self._billed_as = request_id
        try:
            reply = asked.reply(self._initial, run, request.request_id)
            reply.is_stored = True
            conversation_id = asked.conversation_id
            if conversation_id is not None:

                async def add(collected: Collected) -> None:
                    whole = await reply.whole(collected)
                    reply.is_added = await tools.earlier.add(caller, conversation_id, asked.items, whole)

                run.before_end(add)
            self._events = reply.events(is_padded=_is_padded(self._wire))
            self._new += self._begun()
            await self._durably(self._log())
            logged_at_s = time.monotonic()
            async with aclosing(run.items()) as items:
                async for item in items:
                    if isinstance(item, Usage):
                        await self._durably(self._end(self._events.encode_each(item)))
                        return
                    self._new += self._events.encode_each(item)
                    self._has_spoken = self._has_spoken or bool(item)
                    if len(self._new) >= EVENTS_AT_ONCE or time.monotonic() - logged_at_s >= LOG_S:
                        await self._durably(self._log())
                        logged_at_s = time.monotonic()
        except GatewayError:
            raise
        except EXPECTED:
            raise
        except Exception:
            log.exception("background_response_failed", response_id=self.claim.turn.id)
            raise unexpected_error(request.request_id) from None
        finally:
            run.close()

    def _context(self, caller: Principal, asked: CheckedRequest, request_id: str) -> RequestContext:
        fields = ExperimentFields(self._request.headers, caller, self._wire)
        return RequestContext(
            principal=caller,
            request_id=request_id,
            model=self._wire.model,
            endpoint=ENDPOINT,
            stream=True,
            deadline=asyncio.get_running_loop().time() + MAX_RUN_S,
            trace=self._traced,
            logged_messages=asked.logged_messages,
            unit=fields.unit,
            forced_arm=fields.forced_arm,
            is_off=fields.is_off,
        )

    async def _durably(self, write: Coroutine[None, None, None]) -> None:
        """Complete a write, even if the run is cancelled meanwhile.

        write: the statements to complete.
        """
        self._writing = asyncio.create_task(write)
        await asyncio.shield(self._writing)

    async def _log(self) -> None:
        """Write new events to the log, so that they are durable and may be shown.

        Raises Lost: when the response is not this gateway's any more.
        """
        if not self._new:
            return
        new, counts = self._take_events()

        async def append() -> bool:
            return await self._tools.background.append(self.claim.turn, self._num_logged, Events(new, counts))

        await self._write_until_done(append)
        self._num_logged += len(new)

    async def _end(self, last: Sequence[bytes]) -> None:
        """Log the last events, and store the response as it ended."""
        new, counts = self._take_events()
        response = self._events.response
        storable = None if response.status == "failed" else self._storable(response)

        async def end() -> bool:
            return await self._tools.background.end(
                self.claim.turn,
                self._num_logged,
                Events([*new, *last], counts),
                response.status,
                msgspec.json.encode(response),
                storable,
                self.claim.request,
            )

        await self._write_until_done(end)
        self._has_ended = True

    def _storable(self, response: ResponseObject) -> Response | None:
        """Return a response in the form in which responses are stored; None where its input was not understood."""
        items = self._asked.items if self._asked is not None else self._request.items()
        return stored_form(self._wire, items, response) if items else None

    def _take_events(self) -> tuple[list[bytes], bytes]:
        """Take the events that are not logged yet, with the token counts up to now in MessagePack."""
        new, self._new = self._new, []
        counts = msgspec.structs.replace(self._events.counts, request_id=self._billed_as)
        return new, msgspec.msgpack.encode(counts)

    async def _write_until_done(self, write: Callable[[], Awaitable[bool]]) -> None:
        """Execute a write, again and again until the database answers.

        Raises Lost: when the response is not this gateway's any more.
        """
        give_up_at_s = time.monotonic() + AWAY_S
        while not self._is_lost:
            try:
                if await write():
                    return
                break
            except FAILURES:
                if time.monotonic() > give_up_at_s:
                    break
                await asyncio.sleep(LOG_S)
        raise ResponseLost

    async def _logged_before(self) -> tuple[list[bytes], Counts]:
        """Return the events that another gateway's run of the response logged, and the token counts up to them."""
        turn, logged, counts = self.claim.turn, list[bytes](), b""
        while len(logged) < self._num_logged:
            segments = await self._tools.background.events(turn.project_id, turn.id, len(logged))
            if not segments:
                break
            for first_number, events in segments:
                logged += events.encoded[len(logged) - first_number :]
                counts = events.counts or counts
        return logged, msgspec.msgpack.decode(counts, type=Counts) if counts else Counts()

    def _plain_events(self) -> ResponseEvents:
        """Return an encoder of the response's events before there is a run."""
        wire = self._wire
        num_input = 1 if isinstance(wire.input, str) else len(wire.input)
        reply = Reply(
            self._initial,
            ReplyIds(self._request.request_id, self._initial.id.removeprefix("resp_"), num_input),
            tools=response_tools(wire.tools, wire.tool_choice, wire.parallel_tool_calls),
            must_call=False,
            to_bytes=None,
            num_prompt_tokens=0,
        )
        return reply.events(is_padded=_is_padded(wire))


def _is_padded(wire: CreateResponse) -> bool:
    return wire.stream_options is not None and bool(wire.stream_options.include_obfuscation)
