"""POST /v1/responses."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse

from gateway.content.background_responses import BackgroundResponses
from gateway.content.idempotency import Idempotency
from gateway.content.stored_responses import StoredResponses
from gateway.http.bodies import Bodies, decoded
from gateway.http.caller import Caller
from gateway.http.disconnect import unless_disconnected
from gateway.http.request.call import call_of, note_user
from gateway.http.shape import shape
from gateway.http.sse import open_stream
from gateway.openai.responses.background.follow import Followers
from gateway.openai.responses.background.queue import queued
from gateway.openai.responses.checked_request import checked_request
from gateway.openai.responses.events import ResponseEvent
from gateway.openai.responses.options import check_options
from gateway.openai.responses.state import EarlierItems, is_to_be_stored, stored_form, storing_not_allowed
from gateway.openai.responses.wire import CreateResponse, ResponseObject
from gateway.openai.shared import examples
from gateway.openai.shared.context import attach_run, context_of
from gateway.openai.shared.idempotent import idempotent
from gateway.openai.shared.replies import json_response
from gateway.openai.shared.units import ExperimentFields
from gateway.pipeline.collected import Collected
from gateway.pipeline.pipeline import Pipeline

ENDPOINT = "/v1/responses"

SHAPE = shape(body=CreateResponse, reply=ResponseObject, event=ResponseEvent, is_billed=True, example=examples.RESPONSE)
_DECODER = msgspec.json.Decoder(CreateResponse)


def responses(
    pipeline: Pipeline,
    bodies: Bodies,
    idempotency: Idempotency,
    stored: StoredResponses,
    earlier: EarlierItems,
    background: BackgroundResponses,
    followers: Followers,
) -> HTTPRouteHandler:
    """Return the handler of POST /v1/responses."""

    @post("/responses", status_code=200, opt=SHAPE)
    @idempotent(idempotency, bodies)
    async def create_response(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Answer text or items, whole, as a stream of events, or in the background."""
        call = call_of(request.scope)
        body = await bodies.read(request, caller)
        wire = await decoded(_DECODER, body)
        check_options(wire)
        is_to_store = is_to_be_stored(caller, wire.store)
        if wire.background and not is_to_store:
            raise storing_not_allowed("responses to be stored, as those in the background are", "background")
        if wire.store or wire.background:
            await stored.check_room(caller.project_id)
        asked = await checked_request(wire, caller, earlier, pipeline)
        fields = ExperimentFields(request.scope["headers"], caller, wire)
        context = context_of(
            call,
            caller,
            wire.model,
            ENDPOINT,
            stream=wire.stream,
            logged_messages=asked.logged_messages,
            experiment_fields=fields,
        )
        note_user(call, wire.user, wire.safety_identifier)
        if wire.background:
            return await queued(
                request,
                caller,
                body,
                asked,
                context,
                pipeline=pipeline,
                background=background,
                followers=followers,
            )
        run = await pipeline.complete(context, [asked.request])
        attach_run(call, run)
        conversation_id = asked.conversation_id
        initial = asked.initial(run.sampling, run.vote_id.removeprefix("req_"), is_stored=is_to_store)
        reply = asked.reply(initial, run, call.request_id)
        if is_to_store or conversation_id is not None:

            async def keep(collected: Collected) -> None:
                whole = await reply.whole(collected)
                form = stored_form(wire, asked.items, whole)
                if is_to_store:
                    reply.is_stored = await stored.store(caller.project_id, form)
                if conversation_id is not None:
                    reply.is_added = await earlier.add(caller, conversation_id, asked.items, whole)

            run.before_end(keep)
        if wire.stream:
            is_padded = wire.stream_options is not None and bool(wire.stream_options.include_obfuscation)
            events = reply.events(is_padded=is_padded)
            return await open_stream(request, run.items(), events, events.failed)
        (collected,) = await unless_disconnected(call, run.collect())
        return json_response(await reply.whole(collected))

    return create_response
