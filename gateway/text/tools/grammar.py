"""The grammar that the engine enforces on a completion that may call tools."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.protocol import CallableTool, CallGrammar, Grammar
from gateway.domain.errors import InvalidRequest
from gateway.text.tools.formats import TemplateTools
from gateway.text.tools.tool import MAX_CALLS_UNTRAINED, ToolUse

ANY_OBJECT: dict[str, Any] = {"type": "object"}


def call_grammar(template: TemplateTools, use: ToolUse, text: Grammar | None, field: str | None) -> Grammar:
    """Return the grammar of calls in a model's format, and of text where there need not be any calls.

    text: the grammar of a JSON schema, which is an object of checked depth, or of any JSON object; None: any text.

    Raises InvalidRequest: when JSON text and a call can look the same in the model's format; the error names `field`.
    """
    form, text_schema = template.format, None
    if text is not None and not use.must_call:
        if form.looks_like_json:
            raise InvalidRequest(
                f"'{field}' cannot be combined with tools: this model writes tool calls and JSON text alike.",
                param=field,
                code="invalid_parameter_combination",
            )
        assert text.kind in ("json_schema", "json_object")
        text_schema = msgspec.json.decode(text.source) if text.kind == "json_schema" else ANY_OBJECT
    max_calls = use.max_calls if template.is_native else min(use.max_calls, MAX_CALLS_UNTRAINED)
    calls = CallGrammar(
        tools=[
            CallableTool(form.head(tool.name), tool.parameters, tool.label, tool.input_lark, form.text_arguments(tool))
            for tool in use.callable_tools
        ],
        end=form.end,
        trigger=form.trigger if template.trigger_id is None else template.trigger_id,
        opening=form.opening,
        separator=form.separator,
        closing=form.closing,
        marks=template.marks,
        argument_pieces=form.argument_pieces,
        max_calls=max_calls if form.parallel else 1,
        must_call=use.must_call,
        text_schema=text_schema,
        text_label=(field or "") if text_schema is not None else "",
    )
    return Grammar("tool_calls", msgspec.json.encode(calls).decode())
