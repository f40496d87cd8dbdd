"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse

from gateway.api.caller import Caller
from gateway.api.chat_wire import (
    CHAT_NO_EFFECT,
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionRequest,
    ChatDelta,
)
from gateway.api.disconnect import unless_gone
from gateway.api.envelope import call_of
from gateway.api.fields import decode, refuse_unsupported
from gateway.api.messages import template_messages
from gateway.api.options import include_usage, text_request
from gateway.api.replies import collect, json_response, reply_id
from gateway.api.sse import DONE, event, open_stream
from gateway.api.usage import usage_out
from gateway.errors import InvalidRequest
from gateway.pipeline import Completion, Conversation, Pipeline, TextRequest

ENDPOINT = "/v1/chat/completions"

_DECODER = msgspec.json.Decoder(ChatCompletionRequest)


def chat_completions(pipeline: Pipeline) -> HTTPRouteHandler:
    @post("/chat/completions", status_code=200)
    async def create_chat_completion(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        call = call_of(request.scope)
        wire = decode(_DECODER, await request.body())
        call.model = wire.model
        with_usage = include_usage(wire)
        prepared = await pipeline.prepare(caller, _text_request(wire, call.request_id))
        pieces = pipeline.run(prepared)
        if wire.stream:
            return await open_stream(request, _events(pieces, wire.model, call.request_id, with_usage=with_usage))
        text, completion = await unless_gone(request.receive, collect(pieces))
        reply = ChatCompletion(
            id=reply_id("chatcmpl", call.request_id),
            created=int(time.time()),
            model=wire.model,
            choices=[ChatChoice(0, AssistantMessage(text), completion.finish_reason)],
            usage=usage_out([completion.usage]),
        )
        return json_response(reply)

    return create_chat_completion


def _text_request(wire: ChatCompletionRequest, request_id: str) -> TextRequest:
    refuse_unsupported(wire, CHAT_NO_EFFECT)
    if wire.max_tokens is not None and wire.max_completion_tokens is not None:
        raise InvalidRequest(
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
            param="max_tokens",
            code="invalid_parameter_combination",
        )
    return text_request(
        wire,
        request_id=request_id,
        endpoint=ENDPOINT,
        prompt=Conversation(template_messages(wire.messages)),
        max_tokens=wire.max_tokens or wire.max_completion_tokens,
    )


async def _events(
    pieces: AsyncGenerator[str | Completion], model: str, request_id: str, *, with_usage: bool
) -> AsyncGenerator[bytes]:
    """The role first, then text as it comes, the finish reason, and the usage where it was asked for."""
    chunk = partial(
        ChatChunk,
        id=reply_id("chatcmpl", request_id),
        created=int(time.time()),
        model=model,
        usage=None if with_usage else msgspec.UNSET,
    )
    has_begun = False
    async with aclosing(pieces):
        async for piece in pieces:
            if not has_begun:
                has_begun = True
                yield event(chunk(choices=[ChatChunkChoice(0, ChatDelta(role="assistant", content=""))]))
            if isinstance(piece, str):
                yield event(chunk(choices=[ChatChunkChoice(0, ChatDelta(content=piece))]))
                continue
            yield event(chunk(choices=[ChatChunkChoice(0, ChatDelta(), piece.finish_reason)]))
            if with_usage:
                yield event(chunk(choices=[], usage=usage_out([piece.usage])))
    yield DONE
