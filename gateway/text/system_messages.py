"""System messages beside the first, for chat templates that take one at the beginning alone.

A system message that directly follows the first is joined to it. A later one stays where it is, as a turn of the user:
in front of all others it would change the beginning of the prompt with each turn, and nothing of the prompt would be
found in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]

LATE_SYSTEM: list[Message] = [
    {"role": "system", "content": "first"},
    {"role": "user", "content": "question"},
    {"role": "assistant", "content": "answer"},
    {"role": "user", "content": "question"},
    {"role": "system", "content": "a-late-system-message"},
    {"role": "user", "content": "question"},
]
"""A conversation by which a template shows whether it takes late system messages."""


def has_late_system(messages: Sequence[Message]) -> bool:
    """Tell whether a system message follows another message."""
    return any(message["role"] == "system" for message in messages[1:])


def without_late_system(messages: Sequence[Message]) -> list[Message]:
    """Return messages among which only the first may be a system message.

    The system messages at the beginning are joined to one. Later ones are, or belong to, turns of the user. Turns that
    come to stand side by side are one, as many templates want roles in turns.
    """
    fitted: list[Message] = []
    joins = False  # the last message is one that a system message became a part of
    for message in messages:
        is_system = message["role"] == "system"
        if is_system and len(fitted) == 1 and fitted[0]["role"] == "system":
            fitted[0] = _joined(fitted[0], message)
            continue
        is_late = is_system and bool(fitted)
        shown = {**message, "role": "user"} if is_late else message
        is_turn = bool(fitted) and fitted[-1]["role"] == shown["role"] == "user" and (is_late or joins)
        if is_turn:
            fitted[-1] = _joined(fitted[-1], shown)
        else:
            fitted.append(shown)
        joins = is_late or (is_turn and joins)
    return fitted


def _joined(message: Message, following: Message) -> Message:
    return {**message, "content": f"{message['content']}\n\n{following['content']}"}
