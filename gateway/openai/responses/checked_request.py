"""A request for a response as it was understood, and the reply that is made of its run.

The run is in the request's own time, or in the background.
"""

from __future__ import annotations

import time
from functools import partial

import msgspec

from engine.protocol import SamplingParams
from gateway.content.transcript import LoggedMessage
from gateway.domain.tenancy.principal import Principal
from gateway.openai.responses.conversation import logged_items, own_items, template_messages
from gateway.openai.responses.items import Item
from gateway.openai.responses.open_items import Seal
from gateway.openai.responses.options import (
    SEALED_REASONING,
    initial_response,
    rendering_of,
    shows_logprobs,
    text_request,
)
from gateway.openai.responses.reply import Reply, ReplyIds
from gateway.openai.responses.state import EarlierItems, base_of, content_opener, conversation_id_of
from gateway.openai.responses.tools import ResponseTools, response_tools
from gateway.openai.responses.truncation import truncated
from gateway.openai.responses.wire import CreateResponse, ResponseObject
from gateway.openai.shared.tiers import service_tier, shown_tier
from gateway.pipeline.context import RequestContext
from gateway.pipeline.pipeline import Pipeline
from gateway.pipeline.requests import TextRequest
from gateway.pipeline.run import Run


class CheckedRequest(msgspec.Struct, frozen=True):
    """A request for a response, with its fields checked and translated for the pipeline."""

    wire: CreateResponse
    tools: ResponseTools
    tier: str
    """The service tier of the request, as the reply shows it."""
    before: list[Item]
    """The items before the request's own: those of the response or conversation that it continues."""
    items: list[Item]
    """The items that the request itself sent, without those that it continues."""
    request: TextRequest
    """The request to the pipeline."""
    seal: Seal | None = None
    """The function that seals reasoning for the client to keep; None where the client does not ask for that."""

    @property
    def logged_messages(self) -> list[LoggedMessage]:
        """Return the messages of the request, for the request log."""
        return logged_items(self.wire.instructions, self.items)

    @property
    def conversation_id(self) -> str | None:
        """The conversation that the response is added to, if any."""
        return conversation_id_of(self.wire.conversation)

    def initial(self, sampling: SamplingParams, random_part: str, *, is_stored: bool) -> ResponseObject:
        """Return the response before it has output.

        sampling: the sampling parameters: the client's values, and the adapter's where the client set none.
        random_part: the random part of the response's id. is_stored: True: the reply says that it is stored.
        """
        return initial_response(
            self.wire,
            self.tools,
            sampling,
            id=f"resp_{random_part}",
            created_at=int(time.time()),
            tier=self.tier,
            is_stored=is_stored,
            conversation_id=self.conversation_id,
        )

    def reply(self, initial: ResponseObject, run: Run, request_id: str) -> Reply:
        """Return the reply to a run of the request. request_id: the id from which the ids of calls are made."""
        return Reply(
            initial,
            ReplyIds(request_id, initial.id.removeprefix("resp_"), len(self.items)),
            tools=self.tools,
            must_call=self.tools.use is not None and self.tools.use.must_call,
            to_bytes=run.token_bytes if shows_logprobs(self.wire) else None,
            num_prompt_tokens=run.prompt_tokens[0],
            thinks=run.thinks,
            is_thinking=run.thinks and run.has_begun_to_think,
            seal=self.seal,
        )


async def checked_request(
    wire: CreateResponse, caller: Principal, earlier: EarlierItems, pipeline: Pipeline, *, then: str | None = None
) -> CheckedRequest:
    """Return a request with its fields checked and translated, and with the items that it continues.

    then: a question to the model after the conversation; None for none.

    Raises InvalidRequest: for fields that cannot be served.
    Raises LimitReached: when the project reads more stored items than its pace allows.
    """
    tier = service_tier(wire.service_tier, caller)
    tools = response_tools(wire.tools, wire.tool_choice, wire.parallel_tool_calls)
    before = await earlier.items(caller, wire.previous_response_id, wire.conversation)
    items = own_items(wire.input, await earlier.referenced(caller, wire.input))
    conversation = [*before, *items]
    opened = await content_opener(pipeline, caller, wire.model, conversation, earlier.sealed)
    messages = template_messages(wire.instructions, conversation, len(before), opened)
    if then is not None:
        messages.append({"role": "user", "content": then})
    if wire.truncation == "auto":
        context = RequestContext(principal=caller, request_id="", model=wire.model, endpoint="")
        messages = await truncated(
            pipeline,
            context,
            messages,
            tools,
            rendering_of(wire),
            wire.max_output_tokens,
            partial(earlier.charge, caller),
        )
    seal = None
    if SEALED_REASONING in (wire.include or ()):
        base = await base_of(pipeline, caller, wire.model)
        seal = partial(earlier.sealed.seal, project_id=caller.project_id, base=base, kind="reasoning")
    request = text_request(wire, messages, tools, tier)
    return CheckedRequest(wire, tools, shown_tier(tier, caller), before, items, request, seal)
