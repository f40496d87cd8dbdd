"""POST /v1/responses/input_tokens: the tokens that a response would be billed for its input. No engine is asked."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse

from gateway.http.bodies import Bodies, decoded
from gateway.http.caller import Caller
from gateway.http.request.call import call_of
from gateway.http.shape import shape
from gateway.openai.responses.conversation import own_items, template_messages
from gateway.openai.responses.options import check_reasoning, rendering_of
from gateway.openai.responses.state import EarlierItems, content_opener
from gateway.openai.responses.tools import response_tools
from gateway.openai.responses.truncation import truncated
from gateway.openai.responses.wire import CountInputTokens, InputTokens
from gateway.openai.shared.context import context_of
from gateway.openai.shared.replies import json_response
from gateway.openai.tokens.handler import BYTES_PER_REQUEST
from gateway.pipeline.pipeline import Pipeline
from gateway.pipeline.requests import Conversation
from gateway.support.pace import Pace

ENDPOINT = "/v1/responses/input_tokens"

_DECODER = msgspec.json.Decoder(CountInputTokens)


def input_tokens(pipeline: Pipeline, bodies: Bodies, pace: Pace, earlier: EarlierItems) -> HTTPRouteHandler:
    """Return the route of POST /v1/responses/input_tokens. pace: the pace of all requests that only tokenize."""

    @post("/responses/input_tokens", status_code=200, opt=shape(body=CountInputTokens, reply=InputTokens))
    async def count_input_tokens(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Count the tokens of a response's input."""
        body = await bodies.read(request, caller)
        pace.take(caller.project_id, 1 + len(body) / BYTES_PER_REQUEST)
        wire = await decoded(_DECODER, body)
        check_reasoning(wire.reasoning)
        tools = response_tools(wire.tools, wire.tool_choice, wire.parallel_tool_calls)
        before = await earlier.items(caller, wire.previous_response_id, wire.conversation)
        items = [*before, *own_items(wire.input, await earlier.referenced(caller, wire.input))]
        opened = await content_opener(pipeline, caller, wire.model, items, earlier.sealed)
        context = context_of(call_of(request.scope), caller, wire.model, ENDPOINT)
        messages, rendering = template_messages(wire.instructions, items, len(before), opened), rendering_of(wire)
        if wire.truncation == "auto":
            charge = partial(earlier.charge, caller)
            messages = await truncated(pipeline, context, messages, tools, rendering, None, charge)
        conversation = Conversation(messages, tools=tools.use, rendering=rendering)
        num_tokens = await pipeline.tokens.count(context, conversation, "input")
        return json_response(InputTokens(num_tokens))

    return count_input_tokens
