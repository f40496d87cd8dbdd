"""POST /v1/responses."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse

from gateway.content.idempotency import Idempotency
from gateway.content.stored_responses import StoredResponses
from gateway.http.bodies import Bodies, decoded
from gateway.http.caller import Caller
from gateway.http.disconnect import unless_gone
from gateway.http.envelope import call_of, note_user
from gateway.http.shape import shape
from gateway.http.sse import open_stream
from gateway.openai.responses.conversation import items_said, own_items, template_messages
from gateway.openai.responses.events import ResponseEvent
from gateway.openai.responses.options import check_options, initial_response, shows_logprobs, text_request
from gateway.openai.responses.reply import Reply, ReplyIds
from gateway.openai.responses.state import Earlier, id_of, is_to_be_stored, stored_form
from gateway.openai.responses.tools import response_tools
from gateway.openai.responses.wire import CreateResponse, ResponseObject
from gateway.openai.shared import examples
from gateway.openai.shared.context import attach, context_of
from gateway.openai.shared.idempotent import idempotent
from gateway.openai.shared.replies import json_response
from gateway.openai.shared.tiers import service_tier
from gateway.openai.shared.units import Wishes
from gateway.pipeline.collected import Collected
from gateway.pipeline.pipeline import Pipeline

ENDPOINT = "/v1/responses"

SHAPE = shape(body=CreateResponse, reply=ResponseObject, event=ResponseEvent, is_billed=True, example=examples.RESPONSE)
_DECODER = msgspec.json.Decoder(CreateResponse)


def responses(
    pipeline: Pipeline, bodies: Bodies, idempotency: Idempotency, stored: StoredResponses, earlier: Earlier
) -> HTTPRouteHandler:
    @post("/responses", status_code=200, opt=SHAPE)
    @idempotent(idempotency)
    async def create_response(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Answer text or items, whole or as a stream of events."""
        call = call_of(request.scope)
        wire = await decoded(_DECODER, await bodies.read(request, caller))
        check_options(wire)
        tier = service_tier(wire.service_tier, caller)
        tools = response_tools(wire.tools, wire.tool_choice, wire.parallel_tool_calls)
        is_to_store = is_to_be_stored(caller, wire.store)
        if wire.store:
            await stored.check_room(caller.project_id)
        before = await earlier.items(caller, wire.previous_response_id, wire.conversation)
        conversation_id = id_of(wire.conversation)
        items = own_items(wire.input, await earlier.referenced(caller, wire.input))
        messages = template_messages(wire.instructions, [*before, *items], len(before))
        asked = text_request(wire, messages, tools, tier)
        wishes = Wishes(request.scope["headers"], caller, wire)
        said = items_said(wire.instructions, items)
        context = context_of(call, caller, wire.model, ENDPOINT, stream=wire.stream, said=said, wishes=wishes)
        note_user(call, wire.user, wire.safety_identifier)
        run = await pipeline.complete(context, [asked])
        attach(call, run)
        random_part = run.vote_id.removeprefix("req_")
        initial = initial_response(
            wire,
            tools,
            run.sampling,
            id=f"resp_{random_part}",
            created_at=int(time.time()),
            tier=tier,
            is_stored=is_to_store,
            conversation_id=conversation_id,
        )
        reply = Reply(
            initial,
            ReplyIds(call.request_id, random_part, len(items)),
            custom=tools.custom,
            must_call=tools.use is not None and tools.use.must_call,
            to_bytes=run.token_bytes if shows_logprobs(wire) else None,
            num_prompt_tokens=run.prompt_tokens[0],
        )
        if is_to_store or conversation_id is not None:

            async def keep(collected: Collected) -> None:
                whole = await reply.whole(collected)
                form = stored_form(wire, items, whole)
                if is_to_store:
                    reply.is_stored = await stored.store(caller.project_id, form)
                if conversation_id is not None:
                    reply.is_added = await earlier.add(caller, conversation_id, items, whole)

            run.before_end(keep)
        if wire.stream:
            is_padded = wire.stream_options is not None and bool(wire.stream_options.include_obfuscation)
            events = reply.events(is_padded=is_padded)
            return await open_stream(request, run.items(), events, events.failed)
        (collected,) = await unless_gone(call, run.collect())
        return json_response(await reply.whole(collected))

    return create_response
