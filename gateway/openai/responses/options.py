"""The translation of a request for a response into a request to the pipeline, and the values that the reply repeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from engine.protocol import Grammar, SamplingParams
from gateway.backends.base import Message
from gateway.domain.errors import InvalidRequest
from gateway.domain.tenancy.principal import ServiceTier
from gateway.http.fields import as_json, check_depth, missing_field, refuse_unsupported
from gateway.openai.chat.rendering import template_arguments
from gateway.openai.responses.tools import ResponseTools
from gateway.openai.responses.wire import (
    RESPONSES_NO_EFFECT,
    ConversationShown,
    CountInputTokens,
    CreateResponse,
    ReasoningOptions,
    ReasoningShown,
    ResponseObject,
    TextFormat,
    TextShown,
)
from gateway.openai.shared.grammar import JSON_OBJECT, check_beside_tools
from gateway.openai.shared.options import given_options, refuse_beside_tools, sampling_params, stop_strings
from gateway.pipeline.requests import Conversation, FieldNames, TextRequest
from gateway.text.options import Rendering

FORMAT = "text.format"
LOGPROBS = "message.output_text.logprobs"
SEALED_REASONING = "reasoning.encrypted_content"


def check_options(wire: CreateResponse) -> None:
    """Check the fields of which only some values are served.

    Raises InvalidRequest: when a field has another value; the error names the first one.
    """
    if wire.context_management:
        raise InvalidRequest(
            "The field 'context_management' is not supported with this model. Shorten a conversation with "
            "POST /v1/responses/compact, or have its oldest turns left out with 'truncation': 'auto'.",
            param="context_management",
            code="unsupported_value",
        )
    refuse_unsupported(wire, RESPONSES_NO_EFFECT)
    if wire.stream_options is not None and not wire.stream:
        raise InvalidRequest(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            param="stream_options",
            code="invalid_parameter_combination",
        )
    if wire.background and wire.store is False:
        raise InvalidRequest(
            "'background' needs the response to be stored: 'store' must not be false.",
            param="background",
            code="invalid_parameter_combination",
        )
    check_reasoning(wire.reasoning)


def check_reasoning(reasoning: ReasoningOptions | None) -> None:
    """Check the options of reasoning.

    Raises InvalidRequest: when an option has a value that is not served; the error names the first one.
    """
    if reasoning is None:
        return
    if reasoning.mode not in (None, "standard"):
        raise _unsupported_value("reasoning.mode", "standard")
    if reasoning.context not in (None, "auto"):
        raise _unsupported_value("reasoning.context", "auto")


def shows_logprobs(wire: CreateResponse) -> bool:
    """Tell whether the reply includes the log-probabilities of its text."""
    return LOGPROBS in (wire.include or ()) or bool(wire.top_logprobs)


def text_request(
    wire: CreateResponse, messages: Sequence[Message], tools: ResponseTools, tier: ServiceTier
) -> TextRequest:
    """Return the request to the pipeline for a response.

    Raises InvalidRequest: for fields that contradict each other.
    """
    grammar = _grammar(wire.text.format if wire.text is not None else None)
    if tools.use is not None:
        check_beside_tools(grammar, FORMAT)
        refuse_beside_tools(wire)
    return TextRequest(
        prompt=Conversation(list(messages), tools=tools.use, rendering=rendering_of(wire)),
        names=FieldNames(
            prompt="input",
            max_tokens="max_output_tokens",
            grammar=_grammar_field(grammar) or ("tools" if tools.use is not None else None),
            logprobs="top_logprobs" if wire.top_logprobs else "include",
        ),
        sampling=sampling_params(
            wire, num_logprobs=(wire.top_logprobs or 0) if shows_logprobs(wire) else None, grammar=grammar
        ),
        given=given_options(wire),
        max_tokens=wire.max_output_tokens,
        stop=stop_strings(wire),
        service_tier=tier,
    )


def initial_response(
    wire: CreateResponse,
    tools: ResponseTools,
    sampling: SamplingParams,
    *,
    id: str,
    created_at: int,
    tier: str,
    is_stored: bool,
    conversation_id: str | None = None,
) -> ResponseObject:
    """Return a response that has no output yet.

    sampling: the sampling parameters: the client's values, and the adapter's where the client set none. created_at: the
    Unix time in seconds. tier: the service tier. is_stored: True: the reply says that it is stored. conversation_id:
    None outside of conversations.
    """
    text, reasoning = wire.text, wire.reasoning
    return ResponseObject(
        id=id,
        created_at=created_at,
        status="queued" if wire.background else "in_progress",
        background=bool(wire.background),
        model=wire.model,
        output=[],
        instructions=wire.instructions,
        previous_response_id=wire.previous_response_id,
        conversation=ConversationShown(conversation_id) if conversation_id is not None else None,
        tools=tools.shown,
        tool_choice=tools.choice,
        parallel_tool_calls=wire.parallel_tool_calls is not False,
        max_tool_calls=wire.max_tool_calls,
        text=TextShown(_format_shown(text.format if text else None), (text.verbosity if text else None) or "medium"),
        reasoning=ReasoningShown(
            reasoning.effort if reasoning else None,
            (reasoning.summary or reasoning.generate_summary) if reasoning else None,
        ),
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        top_logprobs=wire.top_logprobs or 0,
        max_output_tokens=wire.max_output_tokens,
        truncation=wire.truncation or "disabled",
        store=is_stored,
        service_tier=tier,
        metadata=wire.metadata or {},
        safety_identifier=wire.safety_identifier,
        prompt_cache_key=wire.prompt_cache_key,
        user=UNSET if wire.user is None else wire.user,
    )


def rendering_of(wire: CreateResponse | CountInputTokens) -> Rendering:
    """Return how the chat template is to render a request."""
    arguments = template_arguments(
        wire.chat_template_kwargs,
        wire.reasoning.effort if wire.reasoning is not None else None,
        wire.text.verbosity if wire.text is not None else None,
        effort_field="reasoning.effort",
        verbosity_field="text.verbosity",
    )
    return Rendering(arguments=arguments)


def _grammar_field(grammar: Grammar | None) -> str | None:
    """Return the name of the field that holds a grammar; None where there is no grammar."""
    if grammar is None:
        return None
    return f"{FORMAT}.schema" if grammar.kind == "json_schema" else FORMAT


def _grammar(wanted: TextFormat | None) -> Grammar | None:
    """Return the grammar that constrains the text; None where any text is allowed."""
    if wanted is None or wanted.type != "json_schema":
        for field in ("name", "description", "schema", "strict"):
            if wanted is not None and getattr(wanted, field) is not None:
                raise InvalidRequest(
                    f"'{FORMAT}.{field}' is only allowed with the type 'json_schema'.",
                    param=f"{FORMAT}.{field}",
                    code="invalid_parameter_combination",
                )
        return JSON_OBJECT if wanted is not None and wanted.type == "json_object" else None
    for field in ("name", "schema"):
        if getattr(wanted, field) is None:
            raise missing_field(f"{FORMAT}.{field}")
    check_depth(wanted.schema, f"{FORMAT}.schema")
    return Grammar("json_schema", as_json(wanted.schema))


def _format_shown(wanted: TextFormat | None) -> dict[str, Any]:
    if wanted is None:
        return {"type": "text"}
    if wanted.type != "json_schema":
        return {"type": wanted.type}
    shown: dict[str, Any] = msgspec.structs.asdict(wanted)
    return shown | {"strict": wanted.strict is not False}


def _unsupported_value(param: str, only: str) -> InvalidRequest:
    return InvalidRequest(
        f"The field '{param}' is not supported with this model. The value must be '{only}'.",
        param=param,
        code="unsupported_value",
    )
