"""The translation of a request for a message into a request to the pipeline, and the checks of its options."""

from __future__ import annotations

from collections.abc import Sequence

from engine.protocol import Grammar, SamplingParams
from gateway.domain.adapters.defaults import SAMPLING
from gateway.http.fields import as_json, check_depth, invalid_field, missing_field, refuse_unsupported
from gateway.messages.conversation import CheckSignature, template_turns
from gateway.messages.tools import message_tools
from gateway.messages.wire import COUNT_NO_EFFECT, NO_EFFECT, CreateMessage, OutputConfig, PromptFields, Thinking
from gateway.pipeline.requests import Conversation, FieldNames, TextRequest
from gateway.text.options import Argument, Rendering, TextStyle

FORMAT = "output_config.format"


def check_options(wire: CreateMessage) -> None:
    """Check the fields of which only some values are served.

    Raises InvalidRequest: when a field has another value; the error names the first one.
    """
    refuse_unsupported(wire, NO_EFFECT)
    budget = wire.thinking.budget_tokens if wire.thinking is not None else None
    if budget is not None and budget >= wire.max_tokens:
        raise invalid_field("'thinking.budget_tokens' must be less than 'max_tokens'.", "thinking.budget_tokens")


def conversation_of(wire: PromptFields, check_signature: CheckSignature) -> Conversation:
    """Return the prompt of a request, as a conversation.

    Raises InvalidRequest: for a field, a block or a tool that cannot be served.
    """
    refuse_unsupported(wire, COUNT_NO_EFFECT)
    _check_thinking(wire.thinking)
    turns = template_turns(wire.system, wire.messages, check_signature, wire.context_management)
    rendering = Rendering(
        add_generation_prompt=not turns.continues,
        continue_final_message=turns.continues,
        arguments=tuple(_arguments(wire.thinking, wire.output_config)),
        fits_system=True,
        may_think=is_to_think(wire.thinking),
    )
    return Conversation(turns.messages, message_tools(wire.tools, wire.tool_choice), rendering)


def text_request(wire: CreateMessage, prompt: Conversation) -> TextRequest:
    """Return the request to the pipeline for a message.

    Raises InvalidRequest: for fields that contradict each other.
    """
    grammar = _grammar(wire.output_config)
    return TextRequest(
        prompt=prompt,
        names=FieldNames(
            prompt="messages",
            max_tokens="max_tokens",
            grammar=f"{FORMAT}.schema" if grammar is not None else "tools" if prompt.tools is not None else None,
        ),
        sampling=SamplingParams(
            max_tokens=0,
            temperature=1.0 if wire.temperature is None else wire.temperature,
            top_p=1.0 if wire.top_p is None else wire.top_p,
            top_k=wire.top_k or 0,
            grammar=grammar,
        ),
        given=frozenset(name for name in SAMPLING if getattr(wire, name, None) is not None),
        max_tokens=wire.max_tokens,
        clips_max_tokens=True,
        stop=tuple(wire.stop_sequences or ()),
        style=TextStyle(follows_prompt=prompt.rendering.continue_final_message),
    )


def is_to_think(thinking: Thinking | None) -> bool:
    """Tell whether the model is asked to think.

    thinking: the request's field; None where it is absent.
    """
    return thinking is not None and thinking.type != "disabled"


def _check_thinking(thinking: Thinking | None) -> None:
    if thinking is None:
        return
    if thinking.type == "enabled" and thinking.budget_tokens is None:
        raise missing_field("thinking.budget_tokens")
    if thinking.type != "enabled" and thinking.budget_tokens is not None:
        raise invalid_field(
            f"'thinking.budget_tokens' does not belong to the type '{thinking.type}'.", "thinking.budget_tokens"
        )


def _arguments(thinking: Thinking | None, output: OutputConfig | None) -> Sequence[Argument]:
    """Return the arguments of the chat template.

    Clients send the fields to every model, so that a template which does not read them changes nothing.

    thinking, output: the request's fields; None where they are absent.
    """
    arguments = [Argument("enable_thinking", is_to_think(thinking), "thinking", is_optional=True)]
    if output is not None and output.effort is not None:
        arguments.append(Argument("reasoning_effort", output.effort, "output_config.effort", is_optional=True))
    return arguments


def _grammar(output: OutputConfig | None) -> Grammar | None:
    """Return the grammar that constrains the text; None where any text is allowed."""
    if output is None or output.format is None:
        return None
    check_depth(output.format.schema, f"{FORMAT}.schema")
    return Grammar("json_schema", as_json(output.format.schema))
