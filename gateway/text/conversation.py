"""A conversation as a client asks for its continuation. Plain data, without a tokenizer or a template."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.text.options import USUAL, Rendering
from gateway.text.tools.tool import ToolUse

Message = dict[str, Any]
"""A message in the form of chat templates: `role`, `content`, and for calls of tools `tool_calls`, whose arguments are
an object, or a text where they are no object."""


class Conversation(msgspec.Struct, frozen=True):
    """A prompt that the model's chat template renders."""

    messages: list[Message]
    tools: ToolUse | None = None
    """The tools that the completion may call, if any."""
    rendering: Rendering = USUAL
    """The options for rendering the conversation to a prompt."""
