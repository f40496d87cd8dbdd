"""The log of a response's events as a stream: what is there from a number on, then what comes, until the response ends.

Any gateway can show it: nothing but the database is read, so that a number means the same event everywhere, always.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from gateway.content.background_responses import FINAL, BackgroundResponses
from gateway.domain.errors import InvalidRequest, LimitReached, NotFound
from gateway.domain.tenancy.principal import Principal
from gateway.http.sse import DONE
from gateway.support.quota import Quota

LOOK_S = 0.1
"""The seconds between two looks at the log."""

ALIVE_S = 15.0
"""The seconds of silence after which a comment shows that the stream lives."""

MAX_FOLLOWERS, MAX_FOLLOWERS_OF_ONE = 1024, 128
"""The most streams of logs in one gateway, for all projects and for each."""

ALIVE = b": alive\n\n"


class Followers:
    """The streams of one gateway process."""

    def __init__(self, background: BackgroundResponses) -> None:
        self._background = background
        self._open = Quota(MAX_FOLLOWERS, MAX_FOLLOWERS_OF_ONE)

    async def follow(self, caller: Principal, response_id: str, number: int) -> AsyncGenerator[bytes]:
        """Yield the events that follow the one of this number, -1 for all, and the end of the stream.

        Raises NotFound: where there is no such response any more.
        Raises InvalidRequest: where its events are not kept any more.
        Raises LimitReached: where the project has too many streams.
        """
        if not self._open.take(caller.project_id, 1):
            raise LimitReached("Too many streams of background responses are open.", retry_after_s=1.0)
        try:
            async for data in self._followed(caller, response_id, number + 1):
                yield data
        finally:
            self._open.give_back(caller.project_id, 1)

    async def _followed(self, caller: Principal, response_id: str, wanted: int) -> AsyncGenerator[bytes]:
        silent_s = 0.0
        while True:
            found = await self._background.status(caller, response_id)
            if found is None:
                raise NotFound(f"Response with id '{response_id}' not found.", param="response_id")
            status, num_events = found
            if wanted < num_events:
                segments = await self._background.events(caller.project_id, response_id, wanted)
                if not segments and status in FINAL:
                    raise _forgotten()
                for first_number, events in segments:
                    new = events.encoded[max(0, wanted - first_number) :]
                    if new:
                        wanted, silent_s = first_number + len(events.encoded), 0.0
                        yield b"".join(new)
                continue
            if status in FINAL:
                yield DONE
                return
            if silent_s >= ALIVE_S:
                silent_s = 0.0
                yield ALIVE
            await asyncio.sleep(LOOK_S)
            silent_s += LOOK_S


def _forgotten() -> InvalidRequest:
    return InvalidRequest(
        "The events of this response are not kept any more; read it without 'stream'.",
        param="stream",
        code="events_not_kept",
    )
