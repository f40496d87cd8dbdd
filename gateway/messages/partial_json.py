"""Reads the arguments of a call that was cut off: the part that came, as an object."""

from __future__ import annotations

from typing import Any

import msgspec

_CLOSERS = {"{": "}", "[": "]"}


def object_of(text: str) -> dict[str, Any]:
    """Return the object that a JSON text holds. If the text was cut off, the object has the values that are whole.

    Return an empty object for a text that begins no object.
    """
    for candidate in (text, _closed(text)):
        try:
            found = msgspec.json.decode(candidate)
        except (msgspec.DecodeError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    return {}


def _closed(text: str) -> str:
    """Return a JSON text, cut to its longest beginning that closing brackets can complete, with these brackets."""
    open_marks: list[str] = []
    end, closers = 0, ""
    in_string = is_escaped = False
    for place, character in enumerate(text):
        if in_string:
            if is_escaped:
                is_escaped = False
            elif character == "\\":
                is_escaped = True
            else:
                in_string = character != '"'
            continue
        if character == '"':
            in_string = True
        elif character in "{[":
            open_marks.append(_CLOSERS[character])
            end, closers = place + 1, "".join(reversed(open_marks))
        elif character in "}]" and open_marks:
            open_marks.pop()
            end, closers = place + 1, "".join(reversed(open_marks))
        elif character == ",":
            end, closers = place, "".join(reversed(open_marks))
    return text[:end] + closers
