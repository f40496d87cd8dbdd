"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from msgspec import UNSET

from gateway.content.idempotency import Idempotency
from gateway.content.stored_chats import StoredChats
from gateway.domain.errors import InvalidRequest
from gateway.domain.tenancy.principal import ServiceTier
from gateway.http.bodies import Bodies, decoded
from gateway.http.caller import Caller
from gateway.http.disconnect import unless_disconnected
from gateway.http.fields import refuse_unsupported
from gateway.http.request.call import call_of, note_user
from gateway.http.shape import shape
from gateway.http.sse import open_stream
from gateway.openai.chat.calls import CallShape
from gateway.openai.chat.messages import template_messages
from gateway.openai.chat.prediction import predicted_text
from gateway.openai.chat.rendering import rendering
from gateway.openai.chat.stream import ChatEvents
from gateway.openai.chat.tools import RequestedTools, requested_tools
from gateway.openai.chat.wire import (
    CHAT_NO_EFFECT,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatCompletionRequest,
)
from gateway.openai.shared import examples
from gateway.openai.shared.context import attach_run, context_of, show_cost
from gateway.openai.shared.grammar import check_beside_tools, requested_grammar
from gateway.openai.shared.idempotent import idempotent
from gateway.openai.shared.logged import logged_messages
from gateway.openai.shared.logprobs import TokenBytes, prompt_logprobs, token_namer, whole_chat_logprobs
from gateway.openai.shared.obfuscation import Obfuscated
from gateway.openai.shared.options import (
    check_prompt_logprobs,
    continuous_usage,
    given_options,
    include_obfuscation,
    include_usage,
    refuse_beside_tools,
    sampling_params,
    stop_strings,
    text_style,
)
from gateway.openai.shared.reasoning import Divided, DividedChoice
from gateway.openai.shared.replies import json_response, reply_id
from gateway.openai.shared.tiers import service_tier, shown_tier
from gateway.openai.shared.units import ExperimentFields
from gateway.openai.shared.usage import UsageSoFar, usage_out
from gateway.openai.stored.handler import check_store, store_chat
from gateway.pipeline.collected import Answer, Collected
from gateway.pipeline.pipeline import Pipeline
from gateway.pipeline.requests import Conversation, FieldNames, TextRequest

ENDPOINT = "/v1/chat/completions"

SHAPE = shape(body=ChatCompletionRequest, reply=ChatCompletion, event=ChatChunk, is_billed=True, example=examples.CHAT)
_DECODER = msgspec.json.Decoder(ChatCompletionRequest)


def chat_completions(
    pipeline: Pipeline, bodies: Bodies, idempotency: Idempotency, chats: StoredChats
) -> HTTPRouteHandler:
    """Return the handler of POST /v1/chat/completions."""

    @post("/chat/completions", status_code=200, opt=SHAPE)
    @idempotent(idempotency, bodies)
    async def create_chat_completion(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Answer a conversation, whole or as a stream."""
        call = call_of(request.scope)
        body = await bodies.read(request, caller)
        wire = await decoded(_DECODER, body)
        logged = logged_messages(wire.messages)
        fields = ExperimentFields(request.scope["headers"], caller, wire)
        context = context_of(
            call,
            caller,
            wire.model,
            ENDPOINT,
            stream=wire.stream,
            logged_messages=logged,
            experiment_fields=fields,
        )
        note_user(call, wire.user, wire.safety_identifier)
        check_store(caller, wire.store)
        if wire.store:
            await chats.check_room(caller.project_id)
        with_usage, tier, tools = include_usage(wire), service_tier(wire.service_tier, caller), _tools(wire)
        run = await pipeline.complete(context, [_text_request(wire, tier, tools)])
        attach_run(call, run)
        must_call = tools.use is not None and tools.use.must_call
        reply = _Reply(
            wire,
            {
                "id": reply_id("chatcmpl", run.vote_id),
                "created": int(time.time()),
                "model": wire.model,
                "service_tier": shown_tier(tier, caller),
                "system_fingerprint": run.fingerprint,
            },
            CallShape(call.request_id, tools.is_legacy, tools.is_named, must_call),
            run.prompts[0],
            run.prompt_tokens,
            run.token_bytes,
            run.thinks,
            run.thinks and run.has_begun_to_think,
        )
        if wire.store:

            async def store(collected: Collected) -> None:
                await store_chat(chats, caller, body, wire.metadata, await reply.whole(collected))

            run.before_end(store)
        if wire.stream:
            events = reply.events(with_usage=with_usage, may_call=tools.use is not None)
            encoder = Obfuscated(events, events.empty) if include_obfuscation(wire) else events
            return await open_stream(request, run.items(), encoder)
        (collected,) = await unless_disconnected(call, run.collect())
        show_cost(call, run, [collected.usage])
        return json_response(await reply.whole(collected))

    return create_chat_completion


def _tools(wire: ChatCompletionRequest) -> RequestedTools:
    return requested_tools(wire.tools, wire.tool_choice, wire.parallel_tool_calls, wire.functions, wire.function_call)


def _text_request(wire: ChatCompletionRequest, tier: ServiceTier, tools: RequestedTools) -> TextRequest:
    refuse_unsupported(wire, CHAT_NO_EFFECT)
    if wire.max_tokens is not None and wire.max_completion_tokens is not None:
        raise InvalidRequest(
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
            param="max_tokens",
            code="invalid_parameter_combination",
        )
    if wire.top_logprobs and not wire.logprobs:
        raise InvalidRequest("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs", code="invalid_value")
    check_prompt_logprobs(wire)
    grammar, grammar_field = requested_grammar(wire.response_format, wire.structured_outputs)
    if tools.use is not None:
        check_beside_tools(grammar, grammar_field)
        refuse_beside_tools(wire)
    is_modern = wire.max_completion_tokens is not None
    return TextRequest(
        prompt=Conversation(
            template_messages(wire.messages),
            tools=tools.use,
            rendering=rendering(wire, wire.messages[-1].role, wire.reasoning_effort, wire.verbosity),
        ),
        names=FieldNames(
            prompt="messages",
            max_tokens="max_completion_tokens" if is_modern else "max_tokens",
            grammar=grammar_field or ("tools" if tools.use else None),
            logprobs="top_logprobs" if wire.logprobs else "prompt_logprobs",
            shows_prompt=_prompt_field(wire),
        ),
        sampling=sampling_params(
            wire,
            num_logprobs=(wire.top_logprobs or 0) if wire.logprobs else None,
            num_prompt_logprobs=wire.prompt_logprobs,
            grammar=grammar,
        ),
        given=given_options(wire),
        max_tokens=wire.max_completion_tokens if is_modern else wire.max_tokens,
        n=wire.n or 1,
        stop=stop_strings(wire),
        style=text_style(wire, follows_prompt=bool(wire.continue_final_message)),
        prediction=predicted_text(wire.prediction, wire.n or 1),
        max_prompt_tokens=wire.truncate_prompt_tokens,
        keeps_first=wire.truncation_side == "right",
        service_tier=tier,
    )


def _prompt_field(wire: ChatCompletionRequest) -> str | None:
    """Return the name of the field that asks for the prompt's tokens, or None."""
    if wire.return_token_ids:
        return "return_token_ids"
    return None if wire.prompt_logprobs is None else "prompt_logprobs"


class _Reply(msgspec.Struct, frozen=True):
    """One reply, in the parts from which it can be sent whole, streamed or stored."""

    wire: ChatCompletionRequest
    common: dict[str, Any]
    """The fields that a whole reply and each chunk of a stream have in common."""
    calls: CallShape
    prompt_ids: list[int]
    """The token ids of the prompt."""
    prompt_tokens: list[int]
    """The number of tokens of the prompt: one number, since a chat has one prompt."""
    to_bytes: TokenBytes
    """The function that gives the bytes of tokens."""
    thinks: bool
    """True if the model may think before it answers."""
    is_thinking: bool
    """True if the prompt ended with the beginning of thinking."""

    def events(self, *, with_usage: bool, may_call: bool) -> ChatEvents:
        """Return the encoder of the reply as a stream.

        with_usage: True: a last chunk has the usage. may_call: True: the request has tools to call.
        """
        return ChatEvents(
            partial(ChatChunk, **self.common),
            self.wire.n or 1,
            with_logprobs=bool(self.wire.logprobs),
            with_usage=with_usage,
            is_predicted=self.wire.prediction is not None,
            prompt_ids=self.prompt_ids if self.wire.return_token_ids else None,
            to_bytes=self._shown_names,
            calls=self.calls if may_call else None,
            so_far=UsageSoFar(self.prompt_tokens) if continuous_usage(self.wire) else None,
            reasoning=self._divided_choices(),
        )

    async def whole(self, collected: Collected) -> ChatCompletion:
        """Return the reply as one object."""
        wire, tokens = self.wire, collected.prompt_tokens
        of_prompt = UNSET if wire.prompt_logprobs is None else await prompt_logprobs(tokens, self.to_bytes)
        divided = self._divided_choices()
        return ChatCompletion(
            **self.common,
            metadata=(wire.metadata or {}) if wire.store else UNSET,
            choices=[await self._choice(index, each, divided) for index, each in enumerate(collected.answers)],
            usage=usage_out(
                [collected.usage],
                is_predicted=wire.prediction is not None,
                num_reasoning_tokens=sum(each.num_reasoning_tokens for each in divided),
            ),
            prompt_logprobs=of_prompt,
            prompt_token_ids=self.prompt_ids if wire.return_token_ids else UNSET,
        )

    @property
    def _shown_names(self) -> TokenBytes:
        """The function that names tokens in the form that the client asked for."""
        return token_namer(self.to_bytes, by_id=self.wire.return_tokens_as_token_ids)

    def _divided_choices(self) -> list[DividedChoice]:
        """Return the choices of a model that thinks, none of which has begun; none of any other model."""
        return [DividedChoice(is_open=self.is_thinking) for _ in range((self.wire.n or 1) if self.thinks else 0)]

    async def _choice(self, index: int, answer: Answer, divided: list[DividedChoice]) -> ChatChoice:
        wire = self.wire
        shown = divided[index].whole(answer) if divided else Divided(answer.reasoning, answer.text, answer.tokens)
        return ChatChoice(
            index,
            self.calls.message(index, shown.answer, answer.calls, shown.reasoning),
            self.calls.finish_reason(answer.finish_reason, has_calls=bool(answer.calls)),
            await whole_chat_logprobs(shown.tokens, self._shown_names) if wire.logprobs else None,
            answer.token_ids if wire.return_token_ids else UNSET,
        )
