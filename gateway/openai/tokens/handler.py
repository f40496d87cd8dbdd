"""POST /tokenize and POST /detokenize: the tokens of a text for a model, without asking its engine.

They cost no tokens, and each tenant has a pace of its own.
"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse

from gateway.domain.errors import InvalidRequest
from gateway.http.bodies import Bodies, decoded
from gateway.http.caller import Caller
from gateway.http.request.call import call_of
from gateway.http.shape import shape
from gateway.openai.chat.messages import template_messages
from gateway.openai.chat.rendering import rendering
from gateway.openai.chat.tools import requested_tools
from gateway.openai.shared.context import context_of
from gateway.openai.shared.replies import json_response
from gateway.openai.tokens.wire import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest
from gateway.pipeline.pipeline import Pipeline
from gateway.pipeline.requests import Conversation
from gateway.support.pace import Pace

BYTES_PER_REQUEST = 65_536
"""The number of bytes of a body that count as one more request against a project's pace."""

_TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)


def tokens(pipeline: Pipeline, bodies: Bodies, pace: Pace, *, operations: tuple[str, str]) -> list[HTTPRouteHandler]:
    """Return the routes that tokenize and detokenize, to be served with and without /v1, as vLLM does.

    operations: the names of the two operations in the API's document.
    """
    tokenizing, detokenizing = operations

    @post("/tokenize", operation_id=tokenizing, status_code=200, opt=shape(body=TokenizeRequest, reply=Tokenized))
    async def tokenize(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Return the tokens of a text, or of messages as the chat template renders them."""
        body = await bodies.read(request, caller)
        pace.take(caller.project_id, 1 + len(body) / BYTES_PER_REQUEST)
        wire = await decoded(_TOKENIZE, body)
        prompt, field = _prompt(wire)
        found = await pipeline.tokens.tokenize(
            context_of(call_of(request.scope), caller, wire.model or None, "/tokenize"),
            prompt,
            field,
            add_special_tokens=wire.add_special_tokens is not False,
            with_strings=bool(wire.return_token_strs),
        )
        return json_response(Tokenized(len(found.token_ids), found.max_model_len, found.token_ids, found.strings))

    @post(
        "/detokenize", operation_id=detokenizing, status_code=200, opt=shape(body=DetokenizeRequest, reply=Detokenized)
    )
    async def detokenize(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Return the text of tokens."""
        body = await bodies.read(request, caller)
        pace.take(caller.project_id, 1 + len(body) / BYTES_PER_REQUEST)
        wire = await decoded(_DETOKENIZE, body)
        context = context_of(call_of(request.scope), caller, wire.model or None, "/detokenize")
        return json_response(Detokenized(await pipeline.tokens.detokenize(context, wire.tokens, "tokens")))

    return [tokenize, detokenize]


def _prompt(wire: TokenizeRequest) -> tuple[str | Conversation, str]:
    """Return the text or the conversation to tokenize, and the name of the field that holds it."""
    if (wire.prompt is None) == (wire.messages is None):
        given = "both were given" if wire.prompt is not None else "neither was given"
        raise InvalidRequest(
            f"Send either 'prompt' or 'messages': {given}.",
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
                f"'{field}' is only allowed with 'messages'.", param=field, code="invalid_parameter_combination"
            )
    return wire.prompt or "", "prompt"
