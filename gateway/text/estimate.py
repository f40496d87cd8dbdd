"""The estimated size of a prompt before any tokenizer has read it, for routes."""

from __future__ import annotations

from typing import Any

import msgspec

BYTES_PER_TOKEN = 4


def estimated_tokens(prompt: str | list[int] | list[dict[str, Any]]) -> int:
    """Return an estimate of a prompt's tokens: one for every four bytes of its text, or of its messages as JSON.

    prompt: a text, token ids, or the messages of a conversation.
    """
    if isinstance(prompt, list) and not (prompt and isinstance(prompt[0], dict)):
        return len(prompt)
    size = len(prompt.encode(errors="replace")) if isinstance(prompt, str) else len(msgspec.json.encode(prompt))
    return -(-size // BYTES_PER_TOKEN)
