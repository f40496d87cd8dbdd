"""POST /v1/messages."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse

from gateway.content.idempotency import Idempotency
from gateway.http.bodies import Bodies, decoded
from gateway.http.caller import Caller
from gateway.http.disconnect import unless_disconnected
from gateway.http.request.call import call_of, note_user
from gateway.http.shape import shape
from gateway.http.sse import open_stream
from gateway.messages.conversation import logged_messages
from gateway.messages.errors import MessageError
from gateway.messages.events import StreamedEvent
from gateway.messages.examples import MESSAGE
from gateway.messages.options import check_options, conversation_of, is_to_think, text_request
from gateway.messages.reply import MessageEvents, Reply
from gateway.messages.thinking import Signatures
from gateway.messages.wire import CreateMessage, MessageObject, MessageUsage
from gateway.openai.shared.context import attach_run, context_of, show_cost
from gateway.openai.shared.idempotent import idempotent
from gateway.openai.shared.replies import json_response
from gateway.openai.shared.units import ExperimentFields
from gateway.pipeline.pipeline import Pipeline
from gateway.support.threads import maybe_in_thread

ENDPOINT = "/v1/messages"

FAILURES = dict.fromkeys((400, 401, 403, 404, 409, 413, 415, 429, 500, 529), MessageError)
SHAPE = shape(
    body=CreateMessage,
    reply=MessageObject,
    event=StreamedEvent,
    has_end_mark=False,
    is_billed=True,
    statuses=FAILURES,
    example=MESSAGE,
)
_DECODER = msgspec.json.Decoder(CreateMessage)


def messages(pipeline: Pipeline, bodies: Bodies, idempotency: Idempotency, signatures: Signatures) -> HTTPRouteHandler:
    """Return the handler of POST /v1/messages."""

    @post("/messages", status_code=200, opt=SHAPE)
    @idempotent(idempotency, bodies)
    async def create_message(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Answer a conversation in Anthropic's shapes, whole or as a stream of events."""
        call = call_of(request.scope)
        body = await bodies.read(request, caller)
        wire = await decoded(_DECODER, body)
        check_options(wire)
        check_signature = partial(signatures.check, caller.project_id)
        prompt = await maybe_in_thread(len(body), lambda: conversation_of(wire, check_signature))
        fields = ExperimentFields(request.scope["headers"], caller, wire)
        logged = logged_messages(wire.system, wire.messages)
        context = context_of(
            call,
            caller,
            wire.model,
            ENDPOINT,
            stream=wire.stream,
            logged_messages=logged,
            experiment_fields=fields,
        )
        note_user(call, (wire.metadata or {}).get("user_id"))
        run = await pipeline.complete(context, [text_request(wire, prompt)])
        attach_run(call, run)
        omits_thinking = wire.thinking is not None and wire.thinking.display == "omitted"
        sign = signatures.sign_omitted if omits_thinking else signatures.sign
        is_thinking = run.has_begun_to_think
        reply = Reply(
            request_id=call.request_id,
            initial=MessageObject(
                id=f"msg_{run.vote_id.removeprefix('req_')}",
                model=wire.model,
                content=[],
                usage=MessageUsage(run.prompt_tokens[0], 0),
            ),
            sign=partial(sign, caller.project_id),
            omits_thinking=omits_thinking,
            splits_thinking=is_thinking or is_to_think(wire.thinking) or run.always_thinks,
            is_thinking=is_thinking,
            may_fill_context=run.may_fill_context,
        )
        if wire.stream:
            events = MessageEvents(reply)
            return await open_stream(request, run.items(), events, events.failed)
        (collected,) = await unless_disconnected(call, run.collect())
        show_cost(call, run, [collected.usage])
        return json_response(reply.whole(collected))

    return create_message
