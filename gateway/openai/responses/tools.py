"""Tools of responses: those that a completion may or must call, and their form in a reply."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.domain.errors import InvalidRequest
from gateway.http.fields import invalid_field, missing_field
from gateway.openai.responses.custom_input import parameters_of
from gateway.openai.responses.tools_wire import (
    MAX_TOOLS,
    AllowedToolsChosen,
    CustomChosen,
    CustomFormat,
    CustomToolShown,
    FunctionChosen,
    FunctionToolShown,
    NamespaceShown,
    ResponseTool,
    ResponseToolChoice,
    ToolChoiceShown,
    ToolShown,
)
from gateway.openai.shared.callable_tools import check_unique, make_tool, only_named_tools
from gateway.text.tools.tool import MAX_PARALLEL_CALLS, Tool, ToolUse

Choice = str | ResponseToolChoice | None


class ResponseTools(msgspec.Struct, frozen=True):
    """The tools of one request."""

    use: ToolUse | None
    """The tools that the completion may call; None where it may call none."""
    custom: frozenset[str]
    """The names of custom tools, as the model sees them."""
    namespaces: dict[str, tuple[str, str]]
    """The namespace, and the name within it, of each tool in a namespace, by the name that the model sees."""
    shown: list[ToolShown]
    """The tools as the reply shows them."""
    choice: ToolChoiceShown
    """The choice among the tools as the reply shows it."""


def response_tools(tools: Sequence[ResponseTool] | None, choice: Choice, parallel: bool | None) -> ResponseTools:
    """Return the tools of a request. With the choice `none` the model is told of none.

    parallel: whether an answer may hold several calls; None: it may.

    Raises InvalidRequest: for tools that cannot be served, and for a choice of a tool that is not there.
    """
    namespaces: dict[str, tuple[str, str]] = {}
    given: list[ResponseTool] = []
    known: list[Tool] = []
    paths: list[str] = []
    for index, tool in enumerate(tools or ()):
        path = f"tools[{index}]"
        if tool.type != "namespace":
            if tool.tools is not None:
                raise invalid_field(f"'{path}.tools' does not belong to the type '{tool.type}'.", f"{path}.tools")
            given.append(tool)
            known.append(_tool(tool, path))
            paths.append(path)
            continue
        for place, each in enumerate(_tools_of_namespace(tool, path)):
            inner = msgspec.structs.replace(each, name=in_namespace(tool.name, each.name))
            namespaces[inner.name] = (tool.name, each.name)
            given.append(inner)
            paths.append(f"{path}.tools[{place}]")
            known.append(_tool(inner, paths[-1]))
    if len(known) > MAX_TOOLS:
        raise invalid_field(f"'tools' has more than {MAX_TOOLS} tools.", "tools")
    check_unique(known, "tools", ".name", paths)
    custom = frozenset(tool.name for tool in given if tool.type == "custom")
    shown = [_tool_wire(tool) for tool in tools or ()]
    if not known and choice not in (None, "none", "auto"):
        raise invalid_field("'tool_choice' needs 'tools'.", "tool_choice")
    if not known or choice == "none":
        return ResponseTools(None, custom, namespaces, shown, "none" if choice == "none" else "auto")
    use = ToolUse(
        tuple(known),
        frozenset(tool.name for tool in known),
        must_call=choice == "required",
        max_calls=1 if parallel is False else MAX_PARALLEL_CALLS,
    )
    if isinstance(choice, ResponseToolChoice):
        chosen, shown_choice = _chosen_tools(use, choice, custom)
        return ResponseTools(chosen, custom, namespaces, shown, shown_choice)
    return ResponseTools(use, custom, namespaces, shown, "required" if choice == "required" else "auto")


def _chosen_tools(use: ToolUse, choice: ResponseToolChoice, custom: frozenset[str]) -> tuple[ToolUse, ToolChoiceShown]:
    if choice.type == "allowed_tools":
        if choice.name is not None:
            raise invalid_field("'tool_choice.name' does not belong to the type 'allowed_tools'.", "tool_choice.name")
        if choice.tools is None:
            raise missing_field("tool_choice.tools")
        for place, tool in enumerate(choice.tools):
            _check_type(tool.type, tool.name, custom, f"tool_choice.tools[{place}].type")
        use = only_named_tools(use, [tool.name for tool in choice.tools], "tool_choice.tools", "tools")
        mode = choice.mode or "auto"
        shown = [
            FunctionChosen(tool.name) if tool.type == "function" else CustomChosen(tool.name) for tool in choice.tools
        ]
        return msgspec.structs.replace(use, must_call=mode == "required"), AllowedToolsChosen(mode, shown)
    for field in ("mode", "tools"):
        if getattr(choice, field) is not None:
            raise invalid_field(
                f"'tool_choice.{field}' does not belong to the type '{choice.type}'.", f"tool_choice.{field}"
            )
    if choice.name is None:
        raise missing_field("tool_choice.name")
    use = only_named_tools(use, [choice.name], "tool_choice.name", "tools")
    _check_type(choice.type, choice.name, custom, "tool_choice.type")
    shown_choice = FunctionChosen(choice.name) if choice.type == "function" else CustomChosen(choice.name)
    return msgspec.structs.replace(use, must_call=True, max_calls=1), shown_choice


def _check_type(kind: str, name: str, custom: frozenset[str], path: str) -> None:
    if (name in custom) != (kind == "custom"):
        raise invalid_field(f"'{path}' is '{kind}', but the tool '{name}' is of another type.", path)


def in_namespace(namespace: str, name: str) -> str:
    """Return the name that the model sees for a tool of a namespace."""
    return f"{namespace}__{name}"


def _tools_of_namespace(tool: ResponseTool, path: str) -> Sequence[ResponseTool]:
    """Return the tools of a namespace. path: the path of the namespace."""
    for field in ("parameters", "strict", "format"):
        if getattr(tool, field) is not None:
            raise invalid_field(f"'{path}.{field}' does not belong to the type 'namespace'.", f"{path}.{field}")
    if tool.tools is None:
        raise missing_field(f"{path}.tools")
    for place, each in enumerate(tool.tools):
        if each.type == "namespace" or each.tools is not None:
            where = f"{path}.tools[{place}]"
            raise invalid_field(f"'{where}' is a namespace; a namespace cannot hold another one.", f"{where}.type")
    return tool.tools


def _tool(tool: ResponseTool, path: str) -> Tool:
    for field in ("output_schema", "defer_loading", "allowed_callers"):
        if getattr(tool, field):
            raise InvalidRequest(
                f"The field '{path}.{field}' is not supported.", param=f"{path}.{field}", code="unsupported_parameter"
            )
    if tool.type == "function":
        if tool.format is not None:
            raise invalid_field(f"'{path}.format' does not belong to the type 'function'.", f"{path}.format")
        return make_tool(tool.name, tool.description, tool.parameters, f"{path}.parameters")
    for field in ("parameters", "strict"):
        if getattr(tool, field) is not None:
            raise invalid_field(f"'{path}.{field}' does not belong to the type 'custom'.", f"{path}.{field}")
    form, where = tool.format, f"{path}.format"
    definition = _definition(form, where)
    if definition is None or form is None:
        return make_tool(tool.name, tool.description, parameters_of(None), where)
    label = f"{where}.definition"
    if form.syntax == "regex":
        return make_tool(tool.name, tool.description, parameters_of(definition), label)
    if not definition:  # which the engine would take for no grammar
        raise invalid_field(f"'{label}' is empty: a grammar in Lark has a rule 'start'.", label)
    made = make_tool(tool.name, tool.description, parameters_of(None), label)
    return msgspec.structs.replace(made, input_lark=definition)


def _definition(form: CustomFormat | None, path: str) -> str | None:
    """Return the grammar that a custom tool's input must match; None where any text is allowed."""
    if form is None or form.type == "text":
        for field in ("syntax", "definition"):
            if form is not None and getattr(form, field) is not None:
                raise invalid_field(f"'{path}.{field}' does not belong to the type 'text'.", f"{path}.{field}")
        return None
    if form.syntax is None:
        raise missing_field(f"{path}.syntax")
    if form.definition is None:
        raise missing_field(f"{path}.definition")
    return form.definition


def _tool_wire(tool: ResponseTool) -> ToolShown:
    if tool.type == "namespace":
        return NamespaceShown(tool.name, tool.description or "", [_tool_shown(each) for each in tool.tools or ()])
    return _tool_shown(tool)


def _tool_shown(tool: ResponseTool) -> FunctionToolShown | CustomToolShown:
    if tool.type == "function":
        return FunctionToolShown(tool.name, tool.description, tool.parameters, tool.strict is not False)
    form = tool.format
    if form is None or form.definition is None:
        return CustomToolShown(tool.name, tool.description, {"type": "text"})
    shown = {"type": "grammar", "syntax": form.syntax or "regex", "definition": form.definition}
    return CustomToolShown(tool.name, tool.description, shown)
