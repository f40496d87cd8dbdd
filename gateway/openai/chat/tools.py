"""Converts the tools of a chat completion, and the older functions, to the tools that may or must be called.

Each refusal has the path of the field. The engine decides whether a schema can be enforced.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.domain.errors import InvalidRequest
from gateway.http.fields import invalid_field, missing_field
from gateway.openai.chat.tools_wire import (
    FunctionChoice,
    FunctionObject,
    Functions,
    LegacyFunction,
    ToolChoice,
    ToolChoiceParam,
    ToolParam,
    Tools,
)
from gateway.openai.shared.callable_tools import check_unique, make_tool, only_named_tools
from gateway.text.tools.tool import MAX_PARALLEL_CALLS, Tool, ToolUse


class RequestedTools(msgspec.Struct, frozen=True):
    """The tools of one request."""

    use: ToolUse | None = None
    """The tools that may be called, and how; None where none may be called."""
    is_legacy: bool = False
    """True: the request has `functions`, the older form, with at most one call in the reply."""
    is_named: bool = False
    """True: the client has named the one tool that must be called."""


NO_TOOLS = RequestedTools()


def requested_tools(
    tools: Tools | None,
    choice: ToolChoice | None = None,
    parallel: bool | None = None,
    functions: Functions | None = None,
    function_choice: FunctionChoice | None = None,
) -> RequestedTools:
    """Return the tools that a request asks for. With the choice `none` the model is not told of any.

    parallel: whether an answer may hold several calls; None: it may. functions, function_choice: the older fields; None
    where they are absent.

    Raises InvalidRequest: for tools that cannot be served, and for what contradicts itself or has no effect.
    """
    if parallel is not None and not tools:
        raise invalid_field("'parallel_tool_calls' needs 'tools'.", "parallel_tool_calls")
    if functions or function_choice is not None:
        if tools or choice is not None:
            raise InvalidRequest(
                "'functions' and 'function_call' cannot be combined with 'tools' and 'tool_choice'.",
                param="functions" if functions else "function_call",
                code="invalid_parameter_combination",
            )
        return _tools_of_functions(functions or [], function_choice)
    known = [_function_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools or ())]
    check_unique(known, "tools", ".function.name")
    if not known and choice not in (None, "none", "auto"):
        raise invalid_field("'tool_choice' needs 'tools'.", "tool_choice")
    if not known or choice == "none":
        return NO_TOOLS
    use = ToolUse(
        tuple(known),
        frozenset(tool.name for tool in known),
        must_call=choice == "required",
        max_calls=1 if parallel is False else MAX_PARALLEL_CALLS,
    )
    return _chosen_tools(use, choice) if isinstance(choice, ToolChoiceParam) else RequestedTools(use)


def _tools_of_functions(functions: Sequence[LegacyFunction], choice: FunctionChoice | None) -> RequestedTools:
    known = [_tool_of_function(function, f"functions[{index}].parameters") for index, function in enumerate(functions)]
    check_unique(known, "functions", ".name")
    if not known and choice not in (None, "none", "auto"):
        raise invalid_field("'function_call' needs 'functions'.", "function_call")
    if not known or choice == "none":
        return NO_TOOLS
    use = ToolUse(tuple(known), frozenset(tool.name for tool in known), max_calls=1)
    if choice is None or isinstance(choice, str):
        return RequestedTools(use, is_legacy=True)
    use = only_named_tools(use, [choice.name], "function_call.name", "functions")
    return RequestedTools(msgspec.structs.replace(use, must_call=True), is_legacy=True, is_named=True)


def _chosen_tools(use: ToolUse, choice: ToolChoiceParam) -> RequestedTools:
    path = f"tool_choice.{choice.type}"
    if choice.type == "custom":
        raise InvalidRequest("Custom tools are not supported.", param="tool_choice.type", code="unsupported_value")
    for field in ("function", "allowed_tools", "custom"):
        if field != choice.type and getattr(choice, field) is not None:
            raise invalid_field(
                f"'tool_choice.{field}' does not belong to the type '{choice.type}'.", f"tool_choice.{field}"
            )
    if choice.function is not None:
        use = only_named_tools(use, [choice.function.name], f"{path}.name", "tools")
        return RequestedTools(msgspec.structs.replace(use, must_call=True, max_calls=1), is_named=True)
    if choice.allowed_tools is not None:
        names = [tool.function.name for tool in choice.allowed_tools.tools]
        use = only_named_tools(use, names, f"{path}.tools", "tools")
        return RequestedTools(msgspec.structs.replace(use, must_call=choice.allowed_tools.mode == "required"))
    raise missing_field(path)


def _function_tool(tool: ToolParam, path: str) -> Tool:
    if tool.type != "function":
        raise InvalidRequest(
            f"Tools of the type '{tool.type}' are not supported.", param=f"{path}.type", code="unsupported_value"
        )
    if tool.custom is not None:
        raise invalid_field(f"'{path}.custom' does not belong to the type 'function'.", f"{path}.custom")
    if tool.function is None:
        raise missing_field(f"{path}.function")
    return _tool_of_function(tool.function, f"{path}.function.parameters")


def _tool_of_function(function: FunctionObject | LegacyFunction, path: str) -> Tool:
    return make_tool(function.name, function.description, function.parameters, path)
