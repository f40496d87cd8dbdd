"""System messages that follow other messages, for chat templates that take one at the beginning alone.

Such a message stays where it is, as a turn of the user: in front of all others it would change the beginning of the
prompt with each turn, and nothing of the prompt would be found in the cache.
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
    """Return messages among which only the first may be a system message: others are, or belong to, turns of the user.

    Turns that come to stand side by side are one, as many templates want roles in turns.
    """
    fitted: list[Message] = []
    joins = False  # the last message is one that a system message became a part of
    for place, message in enumerate(messages):
        is_late = place > 0 and message["role"] == "system"
        shown = {**message, "role": "user"} if is_late else message
        is_turn = bool(fitted) and fitted[-1]["role"] == shown["role"] == "user" and (is_late or joins)
        if is_turn:
            fitted[-1] = {**fitted[-1], "content": f"{fitted[-1]['content']}\n\n{shown['content']}"}
        else:
            fitted.append(shown)
        joins = is_late or (is_turn and joins)
    return fitted
