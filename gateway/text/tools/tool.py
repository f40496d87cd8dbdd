"""Tools, and what of them a completion may call. Data alone."""

from __future__ import annotations

from typing import Any

import msgspec

MAX_PARALLEL_CALLS = 16
MAX_CALLS_UNTRAINED = 4
"""The most calls in one completion of a model that was trained on no tools: it knows no end."""

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
"""The schema of a tool that names none."""


class Tool(msgspec.Struct, frozen=True):
    """A function that a model may ask for. name: of letters, digits, _ and -. parameters: JSON schema of the object
    that it takes. label: what refusals call that schema."""

    name: str
    parameters: dict[str, Any]
    label: str
    description: str = ""
    input_lark: str = ""
    """The grammar, in Lark, of the text that is the tool's only argument `input`; "" for any that fits `parameters`."""

    def described(self) -> dict[str, Any]:
        """Return the tool as chat templates expect it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class ToolUse(msgspec.Struct, frozen=True):
    """tools: all that the model is told of. callable_names: those that it may call, at least one. must_call: nothing
    but calls may come. max_calls: of one completion, at least 1."""

    tools: tuple[Tool, ...]
    callable_names: frozenset[str]
    must_call: bool = False
    max_calls: int = MAX_PARALLEL_CALLS

    @property
    def callable_tools(self) -> list[Tool]:
        return [tool for tool in self.tools if tool.name in self.callable_names]
