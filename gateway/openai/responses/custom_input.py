"""Custom tools as functions that take one text: models are trained to call functions, whose arguments are JSON.

A call's arguments are `{"input": TEXT}` to the model and its template, and TEXT alone to the client.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

_BEGINNING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_BEGINNING_WITHOUT_SPACE = '{"input":"'
_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB]")
_ESCAPE_CHARS, _UNICODE_CHARS = 2, 6


def parameters_of(pattern: str | None) -> dict[str, Any]:
    """Return the schema of a custom tool's arguments. pattern: the regular expression that the whole text matches."""
    text = {"type": "string"} if pattern is None else {"type": "string", "pattern": f"^(?:{pattern})$"}
    return {"type": "object", "properties": {"input": text}, "required": ["input"], "additionalProperties": False}


def arguments_of(text: str) -> str:
    """Return the arguments of a call with this input."""
    return msgspec.json.encode({"input": text}).decode()


class CustomInput:
    """The input of one call, taken out of its arguments as they come. No character is split."""

    def __init__(self) -> None:
        self._held = ""
        self._has_begun = False
        self._has_ended = False

    def push(self, arguments: str) -> str:
        """Return the part of the input that a further piece of the arguments completes."""
        if self._has_ended:
            return ""
        self._held += arguments
        if not self._has_begun:
            found = _BEGINNING.match(self._held)
            if found is None:
                return ""
            self._held, self._has_begun = self._held[found.end() :], True
        end = self._whole_chars()
        self._has_ended = self._held[end : end + 1] == '"'
        raw, self._held = self._held[:end], self._held[end:]
        return _decoded(raw)

    def finish(self) -> str:
        """Return the rest of the input.

        That is all of the arguments if they have another form, and "" if they broke off before the text.
        """
        is_cut = _BEGINNING_WITHOUT_SPACE.startswith("".join(self._held.split()))
        return "" if self._has_begun or is_cut else self._held

    def _whole_chars(self) -> int:
        """Return the length of the held text before its closing quote, or before an incomplete escape."""
        held, at = self._held, 0
        while at < len(held) and held[at] != '"':
            size = 1
            if held[at] == "\\":
                size = _UNICODE_CHARS if held[at + 1 : at + 2] == "u" else _ESCAPE_CHARS
                if _HIGH_SURROGATE.match(held, at):
                    following = held[at + size : at + size + 2]
                    if "\\u".startswith(following):  # the other half of a surrogate pair, or the beginning of that half
                        size += _UNICODE_CHARS
            if at + size > len(held):
                break
            at += size
        return at


def _decoded(raw: str) -> str:
    """Return the text of a JSON string's content. Half of a surrogate pair becomes a replacement character.

    A content with escapes that JSON does not have, which no grammar has held, is returned as it is.
    """
    try:
        text: str = json.loads(f'"{raw}"', strict=False)
    except ValueError:
        return raw
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
