"""Tools and tool calls as OpenAI's clients send and expect them: structs and bounds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, UnsetType

from gateway.http.fields import Name

MAX_TOOLS = 128

CallId = Annotated[str, Meta(min_length=1, max_length=256)]


class FunctionName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name of the function that a tool choice demands."""

    name: Name


class LegacyFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function that the model may call, in the older form."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """The JSON schema of the arguments, an object. Without it the function takes no arguments."""


class FunctionObject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function that the model may call."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """The JSON schema of the arguments, an object. Without it the function takes no arguments."""
    strict: bool | None = None
    """Without effect: the schema is always enforced."""


class ToolParam(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool that the model may call. Only functions are served."""

    type: Literal["function", "custom"]
    function: FunctionObject | None = None
    custom: Any = None


class AllowedTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool that the model may call."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tools that the model may call, and whether it has to call one of them."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


class ToolChoiceParam(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool that must be called, or several that may be called."""

    type: Literal["function", "allowed_tools", "custom"]
    function: FunctionName | None = None
    allowed_tools: AllowedTools | None = None
    custom: Any = None


Tools = Annotated[list[ToolParam], Meta(max_length=MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | ToolChoiceParam
Functions = Annotated[list[LegacyFunction], Meta(max_length=MAX_TOOLS)]
FunctionChoice = Literal["none", "auto"] | FunctionName


class FunctionCallParam(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of an earlier turn."""

    name: Name
    arguments: str
    """The arguments as the model wrote them."""


class ToolCallParam(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of an earlier turn, as the client sends it back."""

    id: CallId
    type: Literal["function", "custom"]
    function: FunctionCallParam | None = None
    custom: Any = None


class FunctionCall(msgspec.Struct, frozen=True):
    """A call that the model makes."""

    name: str
    arguments: str
    """JSON text that fits the schema of the tool, unless the completion was too long to end."""


class ToolCall(msgspec.Struct, frozen=True):
    """A call that the model makes."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class FunctionCallDelta(msgspec.Struct, frozen=True):
    """The next part of a call."""

    arguments: str
    name: str | UnsetType = msgspec.UNSET
    """The name of the function, in the first part of a call only."""


class ToolCallDelta(msgspec.Struct, frozen=True):
    """The next part of a tool call."""

    index: int
    function: FunctionCallDelta
    id: str | UnsetType = msgspec.UNSET
    """The id of the call, in the first part of a call only."""
    type: Literal["function"] | UnsetType = msgspec.UNSET
    """The type of the call, in the first part of a call only."""
