"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse

from gateway.api.admission import admit
from gateway.api.caller import Caller
from gateway.api.chat_stream import ChatEvents
from gateway.api.chat_wire import (
    CHAT_NO_EFFECT,
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatCompletionRequest,
    ServedTier,
)
from gateway.api.disconnect import unless_gone
from gateway.api.envelope import call_of
from gateway.api.fields import decode, refuse_unsupported
from gateway.api.grammar import requested_grammar
from gateway.api.logprobs import TokenBytes, chat_logprobs
from gateway.api.messages import template_messages
from gateway.api.options import given_options, include_usage, sampling_params, stop_strings
from gateway.api.replies import Answer, collect, json_response, reply_id
from gateway.api.shape import shape
from gateway.api.sse import open_stream
from gateway.api.usage import usage_out
from gateway.errors import InvalidRequest
from gateway.pipeline import Pipeline
from gateway.requests import Conversation, FieldNames, TextRequest

ENDPOINT = "/v1/chat/completions"

TIER_WEIGHTS: dict[ServedTier, float] = {"flex": 0.5, "default": 1.0, "priority": 2.0}
"""The share of service of a request's tenant, relative to others, while the engine is saturated."""

_DECODER = msgspec.json.Decoder(ChatCompletionRequest)


def chat_completions(pipeline: Pipeline) -> HTTPRouteHandler:
    @post("/chat/completions", status_code=200, opt=shape(body=ChatCompletionRequest, reply=ChatCompletion))
    async def create_chat_completion(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        call = call_of(request.scope)
        wire = decode(_DECODER, await request.body())
        call.model = wire.model
        with_usage, tier = include_usage(wire), _tier(wire)
        asked = _text_request(wire, call.request_id, tier)
        good = await pipeline.prepare(caller, await pipeline.route(caller, wire.model), asked)
        (prepared,) = await admit(pipeline, request, caller, [good])
        items, to_bytes = pipeline.run(prepared), pipeline.tokenizer(prepared).token_bytes
        common: dict[str, Any] = {
            "id": reply_id("chatcmpl", call.request_id),
            "created": int(time.time()),
            "model": wire.model,
            "service_tier": tier,
        }
        num_choices, with_logprobs = wire.n or 1, bool(wire.logprobs)
        if wire.stream:
            events = ChatEvents(
                partial(ChatChunk, **common),
                num_choices,
                with_logprobs=with_logprobs,
                with_usage=with_usage,
                to_bytes=to_bytes,
            )
            return await open_stream(request, events.of(items))
        collected = await unless_gone(request.receive, collect(items, num_choices))
        choices = [
            _choice(index, answer, to_bytes if with_logprobs else None)
            for index, answer in enumerate(collected.answers)
        ]
        return json_response(ChatCompletion(**common, choices=choices, usage=usage_out([collected.usage])))

    return create_chat_completion


def _text_request(wire: ChatCompletionRequest, request_id: str, tier: ServedTier) -> TextRequest:
    refuse_unsupported(wire, CHAT_NO_EFFECT)
    if wire.max_tokens is not None and wire.max_completion_tokens is not None:
        raise InvalidRequest(
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
            param="max_tokens",
            code="invalid_parameter_combination",
        )
    if wire.top_logprobs and not wire.logprobs:
        raise InvalidRequest("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs", code="invalid_value")
    grammar, grammar_field = requested_grammar(wire.response_format, wire.structured_outputs)
    is_modern = wire.max_completion_tokens is not None
    return TextRequest(
        request_id=request_id,
        endpoint=ENDPOINT,
        prompt=Conversation(template_messages(wire.messages)),
        names=FieldNames(
            prompt="messages",
            max_tokens="max_completion_tokens" if is_modern else "max_tokens",
            grammar=grammar_field,
        ),
        stream=bool(wire.stream),
        sampling=sampling_params(
            wire, num_logprobs=(wire.top_logprobs or 0) if wire.logprobs else None, grammar=grammar
        ),
        given=given_options(wire),
        max_tokens=wire.max_completion_tokens if is_modern else wire.max_tokens,
        n=wire.n or 1,
        stop=stop_strings(wire),
        weight=TIER_WEIGHTS[tier],
        service_tier=tier,
    )


def _tier(wire: ChatCompletionRequest) -> ServedTier:
    match wire.service_tier:
        case None | "auto" | "default":
            return "default"
        case "flex" | "priority":
            return wire.service_tier
    raise InvalidRequest(
        f"The service tier '{wire.service_tier}' is not supported: use 'auto', 'default', 'flex' or 'priority'.",
        param="service_tier",
        code="unsupported_value",
    )


def _choice(index: int, answer: Answer, to_bytes: TokenBytes | None) -> ChatChoice:
    logprobs = None if to_bytes is None else chat_logprobs(answer.tokens, to_bytes)
    return ChatChoice(index, AssistantMessage(answer.text), answer.finish_reason, logprobs)
