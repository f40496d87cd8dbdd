"""POST /v1/messages/count_tokens: the tokens that a message would be billed for its prompt. No engine is asked."""

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
from gateway.messages.errors import MessageError
from gateway.messages.options import conversation_of
from gateway.messages.thinking import Signatures
from gateway.messages.wire import CountTokens, InputTokenCount
from gateway.openai.shared.context import context_of
from gateway.openai.shared.replies import json_response
from gateway.openai.tokens.handler import BYTES_PER_REQUEST
from gateway.pipeline.pipeline import Pipeline
from gateway.support.pace import Pace
from gateway.support.threads import maybe_in_thread

ENDPOINT = "/v1/messages/count_tokens"

FAILURES = dict.fromkeys((400, 401, 403, 404, 413, 415, 429, 500, 529), MessageError)
_DECODER = msgspec.json.Decoder(CountTokens)


def count_message_tokens(pipeline: Pipeline, bodies: Bodies, pace: Pace, signatures: Signatures) -> HTTPRouteHandler:
    """Return the route of POST /v1/messages/count_tokens. pace: the pace of all requests that only tokenize."""

    @post(
        "/messages/count_tokens",
        status_code=200,
        opt=shape(body=CountTokens, reply=InputTokenCount, statuses=FAILURES),
    )
    async def count_tokens(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Count the tokens of a message's prompt."""
        body = await bodies.read(request, caller)
        pace.take(caller.project_id, 1 + len(body) / BYTES_PER_REQUEST)
        wire = await decoded(_DECODER, body)
        check_signature = partial(signatures.check, caller.project_id)
        prompt = await maybe_in_thread(len(body), lambda: conversation_of(wire, check_signature))
        context = context_of(call_of(request.scope), caller, wire.model, ENDPOINT)
        return json_response(InputTokenCount(await pipeline.tokens.count(context, prompt, "messages")))

    return count_tokens
