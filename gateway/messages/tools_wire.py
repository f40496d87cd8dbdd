"""Tools, and the choice among them, as Anthropic's clients send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.messages.blocks import CacheControl

MAX_TOOLS = 128

ToolName = Annotated[
    str, Meta(pattern=r"\A[a-zA-Z0-9_-]{1,128}\Z", extra_json_schema={"pattern": "^[a-zA-Z0-9_-]{1,128}$"})
]
"""The name of a tool.

The API's document has the pattern in JSON Schema's dialect, where `$` matches at the text's end alone; in Python it
also matches before a final line break.
"""


class ToolParam(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool that the client runs.

    Tools that Anthropic's servers run, or its models were trained on, are refused by their type.
    """

    name: ToolName
    type: Annotated[str, Meta(max_length=64)] | None = None
    """The type of the tool: `custom`, which may be left out."""
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    """The JSON schema of the tool's arguments, an object. It is enforced whatever `strict` says."""
    strict: bool | None = None
    cache_control: CacheControl | None = None
    eager_input_streaming: bool | None = None
    """Without effect: arguments are streamed as they come."""
    input_examples: Any = None
    defer_loading: bool | None = None
    allowed_callers: Any = None
    max_uses: Any = None
    allowed_domains: Any = None
    blocked_domains: Any = None
    user_location: Any = None
    max_characters: Any = None


class ToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The client's choice: the model may call tools, must call one, must call the named one, or may call none."""

    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    disable_parallel_tool_use: bool | None = None
    """True for one call at most."""
