"""The log of a response's events as a stream: the events from a number on, then further ones until the response ends.

Any gateway can show the log: only the database is read, so that a number means the same event everywhere, always.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec

from gateway.content.background_responses import FINAL, BackgroundResponses
from gateway.db.content.background_responses import Status
from gateway.db.pool import FAILURES
from gateway.domain.errors import GatewayError, InvalidRequest, LimitReached, NotFound
from gateway.domain.tenancy.principal import Principal
from gateway.http.error_body import body_of
from gateway.http.sse import DONE, named_event
from gateway.openai.responses.events import Error, Failed
from gateway.openai.responses.wire import ReplyError, ResponseObject
from gateway.support.quota import Quota

POLL_S = 0.1
"""The seconds between two queries for progress."""

ALIVE_S = 15.0
"""The seconds of silence after which a comment is sent, so that the client sees the stream alive."""

MAX_FOLLOWERS, MAX_FOLLOWERS_OF_ONE = 1024, 128
"""The most streams of logs in one gateway: for all projects together, and for one project."""

ALIVE = b": alive\n\n"

Key = tuple[str, str]
"""A response: the id of its project, and its own id."""

Progress = tuple[Status, int]
"""The status of a response, and the number of its events."""


class StreamPart(msgspec.Struct, frozen=True):
    """A part of the stream of a response's events."""

    encoded: bytes
    num_events: int = 0
    """The number of events in the part, without comments."""


class Following:
    """The encoder of one client's stream of a response's logged events. It knows the number of the next event."""

    def __init__(self, response: bytes, number: int) -> None:
        """Begin a stream.

        response: the response whose events are shown, in its present state, as JSON. number: the number of the first
        event.
        """
        self._response = response
        self._following = number

    async def encode(self, item: StreamPart) -> bytes:
        """Return events as the log has them, and move on to the number of the event after these."""
        self._following += item.num_events
        return item.encoded

    def end(self) -> bytes:
        """Return the event `[DONE]`, with which OpenAI ends a stream."""
        return DONE

    def failed(self, error: GatewayError) -> bytes:
        """Return the events that end a stream after a failure.

        After any failure but a deletion, the response goes on and only the stream ends. A deleted response ends as
        failed, and shows nothing of its content.
        """
        detail, number = body_of(error).error, self._following
        told = named_event(
            "error",
            Error(sequence_number=number, code=detail.code, message=detail.message, param=detail.param, error=detail),
        )
        if not isinstance(error, NotFound):
            return told
        response = msgspec.structs.replace(
            msgspec.json.decode(self._response, type=ResponseObject),
            status="failed",
            error=ReplyError("server_error", error.message),
            incomplete_details=None,
            completed_at=None,
            output=[],
            usage=None,
            store=False,
            conversation=None,
        )
        failed = Failed(sequence_number=number + 1, response=response)
        return told + named_event("response.failed", failed) + DONE


class Followers:
    """The followed streams of one gateway process. They share one query of the database at a time."""

    def __init__(self, background: BackgroundResponses) -> None:
        self._background = background
        self._open = Quota(MAX_FOLLOWERS, MAX_FOLLOWERS_OF_ONE)
        self._waiting: dict[Key, set[asyncio.Future[Progress | None]]] = {}
        self._polling: asyncio.Task[None] | None = None

    async def follow(self, caller: Principal, response_id: str, number: int) -> AsyncGenerator[StreamPart]:
        """Yield the events of a response whose numbers are above `number`; -1 for all events.

        Raises NotFound: when there is no such response any more.
        Raises InvalidRequest: when its events are not kept any more.
        Raises LimitReached: when the project has too many streams.
        """
        if not self._open.take(caller.project_id, 1):
            raise LimitReached("Too many streams of background responses are open.", retry_after_s=1.0)
        try:
            async for part in self._parts_of_stream(caller, response_id, number + 1):
                yield part
        finally:
            self._open.give_back(caller.project_id, 1)

    async def _parts_of_stream(self, caller: Principal, response_id: str, wanted: int) -> AsyncGenerator[StreamPart]:
        key = (caller.project_id, response_id)
        progress: Progress | None = await self._background.status(caller, response_id)
        while True:
            if progress is None:
                raise _no_such(response_id)
            status, num_events = progress
            while wanted < num_events:
                segments = await self._background.events(caller.project_id, response_id, wanted)
                if not segments:
                    is_there = await self._background.status(caller, response_id) is not None
                    raise _events_not_kept() if is_there else _no_such(response_id)
                for first_number, events in segments:
                    new = events.encoded[max(0, wanted - first_number) :]
                    yield StreamPart(b"".join(new), len(new))
                    wanted = first_number + len(events.encoded)
            if status in FINAL:
                return
            while (found := await self._changed(key, progress)) is progress:
                yield StreamPart(ALIVE)
            progress = found

    async def _changed(self, key: Key, progress: Progress) -> Progress | None:
        """Wait until a response has made progress, and return the progress; None if the response is gone.

        After ALIVE_S without progress, return the same progress again.
        """
        try:
            async with asyncio.timeout(ALIVE_S):
                while (found := await self._next_poll(key)) == progress:
                    continue
                return found
        except TimeoutError:
            return progress

    async def _next_poll(self, key: Key) -> Progress | None:
        waiter: asyncio.Future[Progress | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, set()).add(waiter)
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll())
        return await waiter

    async def _poll(self) -> None:
        """Poll the progress of all followed responses, until nobody follows any."""
        while self._waiting:
            await asyncio.sleep(POLL_S)
            waiting, self._waiting = self._waiting, {}
            try:
                found = await self._background.progress(list(waiting))
            except FAILURES:  # the database answers later
                for key, futures in waiting.items():
                    self._waiting.setdefault(key, set()).update(each for each in futures if not each.done())
                continue
            for key, futures in waiting.items():
                for waiter in futures:
                    if not waiter.done():
                        waiter.set_result(found.get(key))


def _no_such(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{response_id}' not found.", param="response_id")


def _events_not_kept() -> InvalidRequest:
    return InvalidRequest(
        "The events of this response are not kept any more; read it without 'stream'.",
        param="stream",
        code="events_not_kept",
    )
