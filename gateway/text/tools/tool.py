"""Tools, and those that a completion may call. Data alone."""

from __future__ import annotations

from typing import Any

import msgspec

MAX_PARALLEL_CALLS = 16
MAX_CALLS_UNTRAINED = 4
"""The most calls in one completion of a model that was not trained on tools: it does not know when to stop."""

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
"""The schema of a tool without parameters."""


class Tool(msgspec.Struct, frozen=True):
    """A function that a model may ask for."""

    name: str
    """The name of the function: letters, digits, _ and -."""
    parameters: dict[str, Any]
    """The JSON schema of the function's argument, an object."""
    label: str
    """The name of the schema in error messages."""
    description: str = ""
    input_lark: str = ""
    """The grammar, in Lark, of the text that is the tool's only argument `input`; "" for any that fits `parameters`."""

    def described(self) -> dict[str, Any]:
        """Return the tool as chat templates expect it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class ToolUse(msgspec.Struct, frozen=True):
    """The use of tools in one completion."""

    tools: tuple[Tool, ...]
    """All tools that the model sees."""
    callable_names: frozenset[str]
    """The names of the tools that the completion may call, at least one."""
    must_call: bool = False
    """True: the completion must consist of calls alone."""
    max_calls: int = MAX_PARALLEL_CALLS
    """The most calls of one completion, at least 1."""

    @property
    def callable_tools(self) -> list[Tool]:
        """The tools that the model may call."""
        return [tool for tool in self.tools if tool.name in self.callable_names]
