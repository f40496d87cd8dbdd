"""POST /v1/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any, TypeGuard

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse

from gateway.api.caller import Caller
from gateway.api.completions_wire import (
    COMPLETION_NO_EFFECT,
    DEFAULT_MAX_TOKENS,
    MAX_PROMPTS,
    CompletionChoice,
    CompletionRequest,
    TextCompletion,
)
from gateway.api.disconnect import unless_gone
from gateway.api.envelope import call_of
from gateway.api.fields import decode, refuse_unsupported
from gateway.api.merge import merged
from gateway.api.options import include_usage, text_request
from gateway.api.replies import json_response, reply_id
from gateway.api.sse import DONE, event, open_stream
from gateway.api.usage import usage_out
from gateway.errors import InvalidRequest
from gateway.pipeline import Completion, Pipeline

ENDPOINT = "/v1/completions"

_DECODER = msgspec.json.Decoder(CompletionRequest)


def completions(pipeline: Pipeline) -> HTTPRouteHandler:
    @post("/completions", status_code=200)
    async def create_completion(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        call = call_of(request.scope)
        wire = decode(_DECODER, await request.body())
        call.model = wire.model
        with_usage = include_usage(wire)
        refuse_unsupported(wire, COMPLETION_NO_EFFECT)
        prepared = [
            await pipeline.prepare(
                caller,
                text_request(
                    wire,
                    # Each choice is a row of the ledger; the first one has the id that the client sees.
                    request_id=call.request_id if index == 0 else f"{call.request_id}.{index}",
                    endpoint=ENDPOINT,
                    prompt=prompt,
                    max_tokens=wire.max_tokens or max(DEFAULT_MAX_TOKENS, wire.min_tokens or 0),
                ),
            )
            for index, prompt in enumerate(_prompts(wire.prompt))
        ]
        pieces = merged([pipeline.run(each) for each in prepared])
        reply = partial(
            TextCompletion, id=reply_id("cmpl", call.request_id), created=int(time.time()), model=wire.model
        )
        if wire.stream:
            return await open_stream(request, _events(pieces, reply, with_usage=with_usage))
        return json_response(await unless_gone(request.receive, _collect(pieces, reply, len(prepared))))

    return create_completion


def _prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """One per choice. Raises InvalidRequest for lists that mix kinds and for too many prompts."""
    if isinstance(prompt, str):
        return [prompt]
    if _all_ints(prompt):
        return [prompt]
    if len(prompt) > MAX_PROMPTS:
        raise InvalidRequest(f"A request may have at most {MAX_PROMPTS} prompts.", param="prompt")
    if len({type(each) for each in prompt}) == 1:
        return [each for each in prompt if not isinstance(each, int)]
    raise InvalidRequest(
        "Invalid value for 'prompt': expected a string, strings, token ids, or lists of token ids, not a mixture.",
        param="prompt",
        code="invalid_type",
    )


def _all_ints(prompt: list[str | int | list[int]]) -> TypeGuard[list[int]]:
    return all(isinstance(each, int) for each in prompt)


async def _events(
    pieces: AsyncGenerator[tuple[int, str | Completion]], reply: partial[TextCompletion], *, with_usage: bool
) -> AsyncGenerator[bytes]:
    """Text as it comes, the finish reason of each choice, and the usage of all where it was asked for."""
    usages = []
    usage = None if with_usage else msgspec.UNSET
    async with aclosing(pieces):
        async for index, piece in pieces:
            if isinstance(piece, str):
                yield event(reply(choices=[CompletionChoice(index, piece)], usage=usage))
            else:
                usages.append(piece.usage)
                yield event(reply(choices=[CompletionChoice(index, "", piece.finish_reason)], usage=usage))
    if with_usage:
        yield event(reply(choices=[], usage=usage_out(usages)))
    yield DONE


async def _collect(
    pieces: AsyncGenerator[tuple[int, str | Completion]], reply: partial[TextCompletion], num_choices: int
) -> TextCompletion:
    texts: list[list[str]] = [[] for _ in range(num_choices)]
    ends: dict[int, Completion] = {}
    async with aclosing(pieces):
        async for index, piece in pieces:
            if isinstance(piece, str):
                texts[index].append(piece)
            else:
                ends[index] = piece
    choices = [CompletionChoice(i, "".join(text), ends[i].finish_reason) for i, text in enumerate(texts)]
    return reply(choices=choices, usage=usage_out([end.usage for end in ends.values()]))
