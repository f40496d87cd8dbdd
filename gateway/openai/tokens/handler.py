"""POST /tokenize and POST /detokenize: what a text is to a model, without asking its engine. They cost no tokens, and
each tenant has a pace of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse

from gateway.domain.errors import InvalidRequest
from gateway.http.envelope import call_of
from gateway.http.fields import decode
from gateway.http.shape import shape
from gateway.openai.chat.messages import template_messages
from gateway.openai.chat.rendering import rendering
from gateway.openai.chat.tools import requested_tools
from gateway.openai.shared.caller import Caller
from gateway.openai.shared.replies import json_response
from gateway.openai.tokens.wire import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest
from gateway.pipeline.bounds import check_ids
from gateway.pipeline.pipeline import Pipeline
from gateway.pipeline.requests import Conversation
from gateway.routing.resolve import Route
from gateway.support.pace import Pace
from gateway.text.tokenizer import Tokenizer

BYTES_PER_REQUEST = 65_536
"""A larger body counts as several requests."""

THREAD_ABOVE_TOKENS = 4096
"""More are turned into text in a thread, so that the streams of others go on."""

T = TypeVar("T")

_TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)


def tokens(pipeline: Pipeline, pace: Pace, *, operations: tuple[str, str]) -> list[HTTPRouteHandler]:
    """Both. operations: their names, as they are mounted with /v1 and without: vLLM's clients ask for either."""
    tokenizing, detokenizing = operations

    async def routed(request: Request[Any, Any, Any], caller: Caller, model: str | None) -> Route:
        model = model or pipeline.only_model
        if model is None:
            raise InvalidRequest(
                "Missing required parameter: 'model'.", param="model", code="missing_required_parameter"
            )
        call_of(request.scope).model = model
        return await pipeline.route(caller, model)

    @post("/tokenize", operation_id=tokenizing, status_code=200, opt=shape(body=TokenizeRequest, reply=Tokenized))
    async def tokenize(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """The tokens of a text, or of messages as the chat template renders them."""
        body = await request.body()
        pace.take(caller.project_id, 1 + len(body) / BYTES_PER_REQUEST)
        wire = decode(_TOKENIZE, body)
        prompt, field = _prompt(wire)
        route = await routed(request, caller, wire.model)
        token_ids = await pipeline.tokenize(
            route, prompt, field, add_special_tokens=wire.add_special_tokens is not False
        )
        tokenizer, capabilities = pipeline.model_of(route)
        strings = await _worked_out(_strings, tokenizer, token_ids) if wire.return_token_strs else None
        return json_response(Tokenized(len(token_ids), capabilities.max_model_len, token_ids, strings))

    @post(
        "/detokenize", operation_id=detokenizing, status_code=200, opt=shape(body=DetokenizeRequest, reply=Detokenized)
    )
    async def detokenize(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """The text of tokens."""
        body = await request.body()
        pace.take(caller.project_id, 1 + len(body) / BYTES_PER_REQUEST)
        wire = decode(_DETOKENIZE, body)
        route = await routed(request, caller, wire.model)
        tokenizer, capabilities = pipeline.model_of(route)
        check_ids("tokens", wire.tokens, capabilities.vocab_size)
        return json_response(Detokenized(await _worked_out(_text, tokenizer, wire.tokens)))

    return [tokenize, detokenize]


def _prompt(wire: TokenizeRequest) -> tuple[str | Conversation, str]:
    """What is to be tokenized, and the field that it came in."""
    if (wire.prompt is None) == (wire.messages is None):
        given = "both were given" if wire.prompt is not None else "neither was given"
        raise InvalidRequest(
            f"Either 'prompt' or 'messages' is needed: {given}.",
            param="prompt",
            code="missing_required_parameter" if wire.prompt is None else "invalid_parameter_combination",
        )
    if wire.messages is not None:
        last_role = wire.messages[-1].role
        tools = requested_tools(wire.tools).use
        rendered = rendering(wire, last_role)
        return Conversation(template_messages(wire.messages), tools=tools, rendering=rendered), "messages"
    for field in ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
        if getattr(wire, field) is not None:
            raise InvalidRequest(
                f"'{field}' goes with 'messages' alone.", param=field, code="invalid_parameter_combination"
            )
    return wire.prompt or "", "prompt"


async def _worked_out(work: Callable[[Tokenizer, list[int]], T], tokenizer: Tokenizer, token_ids: list[int]) -> T:
    if len(token_ids) > THREAD_ABOVE_TOKENS:
        return await asyncio.to_thread(work, tokenizer, token_ids)
    return work(tokenizer, token_ids)


def _text(tokenizer: Tokenizer, token_ids: list[int]) -> str:
    return tokenizer.decode(token_ids, with_special=True)


def _strings(tokenizer: Tokenizer, token_ids: list[int]) -> list[str]:
    """As the vocabulary has them, where a space may be another character."""
    return [tokenizer.backend.id_to_token(token_id) or "" for token_id in token_ids]
