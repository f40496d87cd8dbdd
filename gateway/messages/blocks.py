"""Content blocks: as clients send them, all in one shape, and as replies show them.

A block of a reply may be sent again.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MAX_BLOCKS = 4096

BlockId = Annotated[str, Meta(min_length=1, max_length=256)]


class CacheControl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client's wish to have a prompt cached. It has no effect: prompts are found in the cache by their tokens."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class ResultBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A block of a tool's result. Only text is served."""

    type: Literal["text", "image", "document", "search_result", "tool_reference"]
    text: str | None = None
    cache_control: CacheControl | None = None
    citations: Any = None
    source: Any = None
    title: Any = None
    content: Any = None
    context: Any = None
    tool_name: Any = None


class InputBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A block of a message. Text, calls of tools, their results and thinking are served."""

    type: Literal[
        "text",
        "tool_use",
        "tool_result",
        "thinking",
        "redacted_thinking",
        "image",
        "document",
        "search_result",
        "server_tool_use",
        "web_search_tool_result",
        "container_upload",
        "mcp_tool_use",
        "mcp_tool_result",
    ]
    text: str | None = None
    id: BlockId | None = None
    """The id of a call, which its result names."""
    name: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    input: dict[str, Any] | None = None
    """The arguments of a call."""
    tool_use_id: BlockId | None = None
    """The id of the call that a result belongs to."""
    content: str | Annotated[list[ResultBlock], Meta(max_length=MAX_BLOCKS)] | None = None
    """The answer of a tool, in its result."""
    is_error: bool | None = None
    """True if the tool failed; the model reads `Error: ` before the result."""
    thinking: str | None = None
    signature: str | None = None
    """The signature, which shows that this server wrote the thinking."""
    data: str | None = None
    """The content of `redacted_thinking`, which has no effect here."""
    cache_control: CacheControl | None = None
    citations: Any = None
    """A field of replies, which has no effect when a client sends it back."""
    caller: Any = None
    """A field of replies, which has no effect when a client sends it back."""
    source: Any = None
    title: Any = None
    context: Any = None
    file_id: Any = None
    server_name: Any = None
    toolset_name: None = None


class SystemBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the system prompt."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: Any = None


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Text of a reply."""

    text: str
    citations: None = None


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """The text that the model wrote before its answer, where its chat template has a place for that."""

    thinking: str
    signature: str
    """The signature of the thinking, sent back with the block: a block whose text was changed is refused."""


class DirectCaller(msgspec.Struct, frozen=True):
    """The caller of a tool: the model itself, always."""

    type: Literal["direct"] = "direct"


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]
    """The arguments of the call, which fit the tool's schema. If `max_tokens` ended the message, they may be
    incomplete."""
    caller: DirectCaller = DirectCaller()


OutputBlock = TextBlock | ThinkingBlock | ToolUseBlock
