"""Converts tools, and the choice among them, to the tools that a completion may call. Each refusal has a path."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.domain.errors import InvalidRequest
from gateway.http.fields import invalid_field, missing_field
from gateway.messages.tools_wire import ToolChoice, ToolParam
from gateway.openai.shared.callable_tools import check_unique, make_tool, only_named_tools
from gateway.text.tools.tool import MAX_PARALLEL_CALLS, Tool, ToolUse

_UNSUPPORTED = ("defer_loading", "allowed_callers", "input_examples")
_OF_SERVER_TOOLS = ("max_uses", "allowed_domains", "blocked_domains", "user_location", "max_characters")


def message_tools(tools: Sequence[ToolParam] | None, choice: ToolChoice | None) -> ToolUse | None:
    """Return the tools that the completion of a request may call; None where it may call none.

    With the choice `none` the model sees no tool.

    Raises InvalidRequest: for tools that cannot be served, and for a choice of a tool that is not there.
    """
    known = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools or ())]
    check_unique(known, "tools", ".name")
    kind = choice.type if choice is not None else "auto"
    if choice is not None:
        _check_choice(choice)
    if not known and kind in ("any", "tool"):
        raise invalid_field("'tool_choice' needs 'tools'.", "tool_choice")
    if not known or kind == "none":
        return None
    is_single = choice is not None and bool(choice.disable_parallel_tool_use)
    use = ToolUse(
        tuple(known),
        frozenset(tool.name for tool in known),
        must_call=kind in ("any", "tool"),
        max_calls=1 if is_single else MAX_PARALLEL_CALLS,
    )
    if choice is not None and choice.name is not None:
        use = msgspec.structs.replace(only_named_tools(use, [choice.name], "tool_choice.name", "tools"), max_calls=1)
    return use


def _check_choice(choice: ToolChoice) -> None:
    if choice.type == "tool" and choice.name is None:
        raise missing_field("tool_choice.name")
    if choice.type != "tool" and choice.name is not None:
        raise invalid_field(f"'tool_choice.name' does not belong to the type '{choice.type}'.", "tool_choice.name")
    if choice.type == "none" and choice.disable_parallel_tool_use is not None:
        raise invalid_field(
            "'tool_choice.disable_parallel_tool_use' does not belong to the type 'none'.",
            "tool_choice.disable_parallel_tool_use",
        )


def _tool(tool: ToolParam, path: str) -> Tool:
    if tool.type not in (None, "custom"):
        raise InvalidRequest(
            f"Tools of the type '{tool.type}' are not supported: there are no tools that the server runs, and models "
            "were not trained on Anthropic's. Send tools of the type 'custom'.",
            param=f"{path}.type",
            code="unsupported_value",
        )
    for field in (*_UNSUPPORTED, *_OF_SERVER_TOOLS):
        if getattr(tool, field):
            raise InvalidRequest(
                f"The field '{path}.{field}' is not supported.", param=f"{path}.{field}", code="unsupported_parameter"
            )
    if tool.input_schema is None:
        raise missing_field(f"{path}.input_schema")
    return make_tool(tool.name, tool.description, tool.input_schema, f"{path}.input_schema")
