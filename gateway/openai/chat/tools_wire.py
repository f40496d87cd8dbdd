"""Tools and tool calls as OpenAI's clients send and expect them: structs and bounds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, UnsetType

from gateway.http.fields import Name

MAX_TOOLS = 128

CallId = Annotated[str, Meta(min_length=1, max_length=256)]


class FunctionName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name


class LegacyFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """parameters: JSON schema of an object; without it the function takes nothing."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None


class FunctionObject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """parameters: as of `LegacyFunction`. strict: they are enforced either way."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolParam(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Only functions can be served."""

    type: Literal["function", "custom"]
    function: FunctionObject | None = None
    custom: Any = None


class AllowedTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["function"]
    function: FunctionName


class AllowedTools(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


class ToolChoiceParam(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tool that must be called, or several that may be."""

    type: Literal["function", "allowed_tools", "custom"]
    function: FunctionName | None = None
    allowed_tools: AllowedTools | None = None
    custom: Any = None


Tools = Annotated[list[ToolParam], Meta(max_length=MAX_TOOLS)]
ToolChoice = Literal["none", "auto", "required"] | ToolChoiceParam
Functions = Annotated[list[LegacyFunction], Meta(max_length=MAX_TOOLS)]
FunctionChoice = Literal["none", "auto"] | FunctionName


class FunctionCallParam(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of an earlier turn. arguments: as the model wrote them."""

    name: Name
    arguments: str


class ToolCallParam(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: CallId
    type: Literal["function", "custom"]
    function: FunctionCallParam | None = None
    custom: Any = None


class FunctionCall(msgspec.Struct, frozen=True):
    """arguments: JSON text that its tool's schema validates, unless the completion was too long to end."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class FunctionCallDelta(msgspec.Struct, frozen=True):
    """name: of the first delta of a call alone."""

    arguments: str
    name: str | UnsetType = msgspec.UNSET


class ToolCallDelta(msgspec.Struct, frozen=True):
    """id, type: of the first delta of a call alone."""

    index: int
    function: FunctionCallDelta
    id: str | UnsetType = msgspec.UNSET
    type: Literal["function"] | UnsetType = msgspec.UNSET
