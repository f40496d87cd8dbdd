"""POST /v1/responses with `background`: the response is queued, and answered from its log of events."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request
from litestar.response.base import ASGIResponse

from gateway.content.background_responses import MAX_OPEN, BackgroundResponses
from gateway.domain.errors import LimitReached
from gateway.domain.tenancy.principal import Principal
from gateway.http.request.call import call_of
from gateway.http.sse import open_stream
from gateway.openai.responses.background.follow import Followers, Following
from gateway.openai.responses.background.request import BackgroundRequest, experiment_headers, referenced_items
from gateway.openai.responses.checked_request import CheckedRequest
from gateway.openai.responses.reply import Reply, ReplyIds
from gateway.openai.shared.replies import json_response
from gateway.pipeline.context import RequestContext
from gateway.pipeline.pipeline import Pipeline

NUM_FIRST_EVENTS = 2
"""The number of events that a response has once it is queued: `created` and `queued`."""


async def queued(
    request: Request[Any, Any, Any],
    caller: Principal,
    body: bytes,
    asked: CheckedRequest,
    context: RequestContext,
    *,
    pipeline: Pipeline,
    background: BackgroundResponses,
    followers: Followers,
) -> ASGIResponse:
    """Queue a response and return its reply: the queued response, or the stream of its events.

    Raises ModelNotFound: when the caller may use no such model.
    Raises LimitReached: when too many responses of the project have not ended.
    """
    call = call_of(request.scope)
    sampling = await pipeline.sampling(context, asked.request)
    random_part = call.request_id.removeprefix("req_")
    initial = asked.initial(sampling, random_part, is_stored=True)
    reply = Reply(
        initial,
        ReplyIds(call.request_id, random_part, len(asked.items)),
        tools=asked.tools,
        must_call=False,
        to_bytes=None,
        num_prompt_tokens=0,
    )
    is_queued = await background.queue(
        caller,
        initial.id,
        asked.wire.model,
        request=msgspec.msgpack.encode(
            BackgroundRequest(
                call.request_id,
                body,
                experiment_headers(request.scope["headers"]),
                referenced_items(asked.wire, asked.items),
                call.trace.header,
            )
        ),
        response=msgspec.json.encode(initial),
        events=reply.events(is_padded=False).encode_each([])[:NUM_FIRST_EVENTS],
    )
    if not is_queued:
        raise LimitReached(
            f"This project has {MAX_OPEN} background responses that have not ended, or no room for more.",
            param="background",
            code="too_many_background_responses",
            retry_after_s=5.0,
        )
    if asked.wire.stream:
        following = Following(msgspec.json.encode(initial), 0)
        return await open_stream(request, followers.follow(caller, initial.id, -1), following, following.failed)
    return json_response(initial)
