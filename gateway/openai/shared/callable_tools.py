"""Tools that a completion may call, and calls of earlier turns, of every API. Refusals name the path of a field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.http.fields import check_depth, invalid_field
from gateway.text.tools.tool import NO_PARAMETERS, Tool, ToolUse


def make_tool(name: str, description: str | None, parameters: dict[str, Any] | None, path: str) -> Tool:
    """Return a tool that a completion may call.

    path: the path of the field with the tool's parameters. description: the tool's purpose in words; None: none is
    given. parameters: the JSON schema of the tool's arguments; None: the tool takes no arguments.

    Raises InvalidRequest: when the parameters are no schema of an object, or nested too deeply.
    """
    if parameters is None:
        parameters = NO_PARAMETERS
    check_depth(parameters, path)
    kind = parameters.get("type", "object")
    if kind != "object":
        raise invalid_field(
            f"'{path}' must be a JSON schema of the type 'object', not {msgspec.json.encode(kind).decode()}.", path
        )
    return Tool(name, parameters, path, description or "")


def only_named_tools(use: ToolUse, names: Sequence[str], path: str, tools: str) -> ToolUse:
    """Return a `ToolUse` that allows only the named tools to be called.

    names: the names of the callable tools. path: the path of the field that has the names. tools: the field that has
    all tools.

    Raises InvalidRequest: when no tool has one of the names.
    """
    for name in names:
        if name not in use.callable_names:
            raise invalid_field(f"'{path}' names '{name}', which is not in '{tools}'.", path)
    return msgspec.structs.replace(use, callable_names=frozenset(names))


def check_unique(tools: Sequence[Tool], field: str, name_field: str, paths: Sequence[str] | None = None) -> None:
    """Check that no two tools have one name. paths: the path of each tool; None: the tool's place in the field.

    Raises InvalidRequest: when two tools have one name; the error names the second one.
    """
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            path = f"{paths[index] if paths is not None else f'{field}[{index}]'}{name_field}"
            raise invalid_field(f"'{path}' is not unique: another tool has the name '{tool.name}' too.", path)
        seen.add(tool.name)


def made_call(call_id: str, name: str, arguments: str, path: str) -> dict[str, Any]:
    """Return a tool call of an earlier turn in the form that chat templates take.

    Arguments that are a JSON object are decoded; others stay text. path: the path of the arguments.

    Raises InvalidRequest: for arguments that are nested too deeply.
    """
    try:
        decoded = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        decoded = None
    check_depth(decoded, path)
    shown = decoded if isinstance(decoded, dict) else arguments
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": shown}}
