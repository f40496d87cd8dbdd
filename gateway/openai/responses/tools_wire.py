"""Tools of responses, and the choice among them, as clients send them and replies show them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.http.fields import Name

MAX_TOOLS = 128


class CustomFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form that a custom tool's input must have: any text, or a grammar: a regular expression, or Lark."""

    type: Literal["text", "grammar"]
    syntax: Literal["regex", "lark"] | None = None
    definition: Annotated[str, Meta(min_length=1, max_length=65_536)] | None = None


class ResponseTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool that the model may call, or a namespace of such tools.

    A tool is a function, whose arguments are JSON, or a custom tool, whose input is text.
    """

    type: Literal["function", "custom", "namespace"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """The JSON schema of the arguments, an object. Without it the function takes no arguments."""
    strict: bool | None = None
    """Without effect: the schema is always enforced."""
    format: CustomFormat | None = None
    """The form of a custom tool's input; any text where it is left out."""
    tools: Annotated[list[ResponseTool], Meta(min_length=1, max_length=MAX_TOOLS)] | None = None
    """The tools of a namespace, which the model knows as `NAMESPACE__NAME`."""
    output_schema: Any = None
    defer_loading: bool | None = None
    allowed_callers: Any = None


class ChosenTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The one tool that the model has to call."""

    type: Literal["function", "custom"]
    name: Name


class ResponseToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool that must be called, or several that may be called."""

    type: Literal["function", "custom", "allowed_tools"]
    name: Name | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[ChosenTool], Meta(min_length=1, max_length=MAX_TOOLS)] | None = None


class FunctionToolShown(msgspec.Struct, frozen=True, tag_field="type", tag="function"):
    """A function as a reply shows it."""

    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool


class CustomToolShown(msgspec.Struct, frozen=True, tag_field="type", tag="custom"):
    """A custom tool as a reply shows it."""

    name: str
    description: str | None
    format: dict[str, str]


class NamespaceShown(msgspec.Struct, frozen=True, tag_field="type", tag="namespace"):
    """A namespace as a reply shows it."""

    name: str
    description: str
    tools: list[FunctionToolShown | CustomToolShown]


class FunctionChosen(msgspec.Struct, frozen=True, tag_field="type", tag="function"):
    """A function that was chosen, as a reply shows it."""

    name: str


class CustomChosen(msgspec.Struct, frozen=True, tag_field="type", tag="custom"):
    """A custom tool that was chosen, as a reply shows it."""

    name: str


class AllowedToolsChosen(msgspec.Struct, frozen=True, tag_field="type", tag="allowed_tools"):
    """The tools that the model may call, as a reply shows them."""

    mode: Literal["auto", "required"]
    tools: list[FunctionChosen | CustomChosen]


ToolShown = FunctionToolShown | CustomToolShown | NamespaceShown
ToolChoiceShown = Literal["none", "auto", "required"] | FunctionChosen | CustomChosen | AllowedToolsChosen
