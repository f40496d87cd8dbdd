"""POST /v1/responses/compact: a conversation as its user's messages and a summary by the model, sealed."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from msgspec import UNSET

from gateway.content.idempotency import Idempotency
from gateway.http.bodies import Bodies, decoded
from gateway.http.caller import Caller
from gateway.http.disconnect import unless_disconnected
from gateway.http.fields import missing_field
from gateway.http.request.call import call_of
from gateway.http.shape import shape
from gateway.openai.responses.checked_request import checked_request
from gateway.openai.responses.conversation import item_id
from gateway.openai.responses.items import CompactionItem, MessageItem
from gateway.openai.responses.reply import usage_of
from gateway.openai.responses.state import EarlierItems
from gateway.openai.responses.wire import CompactedResponse, CompactResponse, CreateResponse, IncompleteDetails
from gateway.openai.shared import examples
from gateway.openai.shared.context import attach_run, context_of, show_cost
from gateway.openai.shared.idempotent import idempotent
from gateway.openai.shared.replies import json_response
from gateway.openai.shared.units import ExperimentFields
from gateway.pipeline.pipeline import Pipeline

ENDPOINT = "/v1/responses/compact"

REQUEST = (
    "Summarize the conversation so far for an assistant who is to go on with it and has nothing else of it: the user's "
    "goals and wishes, facts and decisions, results of tools, and what is still open. Answer with the summary alone."
)
"""The instruction to the model, after the conversation, to summarize it."""

_DECODER = msgspec.json.Decoder(CompactResponse)


def compact(pipeline: Pipeline, bodies: Bodies, idempotency: Idempotency, earlier: EarlierItems) -> HTTPRouteHandler:
    """Return the handler of POST /v1/responses/compact."""

    @post(
        "/responses/compact",
        status_code=200,
        opt=shape(body=CompactResponse, reply=CompactedResponse, is_billed=True, example=examples.COMPACT),
    )
    @idempotent(idempotency, bodies)
    async def compact_response(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Return a shorter form of a conversation: messages of the user, and a sealed summary. Nothing is stored."""
        call = call_of(request.scope)
        wire = await decoded(_DECODER, await bodies.read(request, caller))
        if wire.input is None and wire.previous_response_id is None:
            raise missing_field("input")
        whole = CreateResponse(
            model=wire.model,
            input=wire.input if wire.input is not None else [],
            instructions=wire.instructions,
            previous_response_id=wire.previous_response_id,
            service_tier=wire.service_tier,
        )
        asked = await checked_request(whole, caller, earlier, pipeline, then=REQUEST)
        fields = ExperimentFields(request.scope["headers"], caller, whole)
        context = context_of(
            call,
            caller,
            wire.model,
            ENDPOINT,
            logged_messages=asked.logged_messages,
            experiment_fields=fields,
        )
        base = await pipeline.base(context)
        run = await pipeline.complete(context, [asked.request])
        attach_run(call, run)
        (collected,) = await unless_disconnected(call, run.collect())
        show_cost(call, run, [collected.usage])
        random_part = call.request_id.removeprefix("req_")
        messages = [
            item for item in (*asked.before, *asked.items) if isinstance(item, MessageItem) and item.role == "user"
        ]
        messages = [
            msgspec.structs.replace(item, id=item_id("msg", random_part, number))
            for number, item in enumerate(messages)
        ]
        answer = run.without_thinking(collected).answers[0]
        summary = earlier.sealed.seal(answer.text, caller.project_id, base, "compaction")
        item = CompactionItem(item_id("cmp", random_part, len(messages)), summary)
        is_cut = answer.finish_reason == "length"
        return json_response(
            CompactedResponse(
                f"resp_{random_part}",
                int(time.time()),
                [*messages, item],
                usage_of(collected.usage),
                incomplete_details=IncompleteDetails("max_output_tokens") if is_cut else UNSET,
            )
        )

    return compact_response
