"""The arguments of one call, read as the text of a JSON object while they come.

Most models write arguments as a JSON object. Some write each argument between letters of its own. Knows no tools' names
and nothing of the text around a call.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Literal, Protocol

import msgspec

from engine.protocol import ArgumentPieces

NOT_AS_TEXT = frozenset(
    (*("allOf", "anyOf", "oneOf", "$ref", "const", "pattern", "format", "minLength", "maxLength", "not", "if"),)
)
"""The keywords of a schema that a value written as text could not be held to."""
_check_json = msgspec.json.Decoder(msgspec.Raw).decode
"""Raise `msgspec.DecodeError` for a text that is no JSON. Numbers may have any size, as in JSON schemas."""

PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


def text_arguments(schema: dict[str, Any], pieces: ArgumentPieces) -> list[str]:
    """Return the names of a tool's arguments whose values are written as text: strings without bounds, and enums.

    All other values are written as JSON, with quotation marks around strings.

    schema: the JSON schema of all the tool's arguments. pieces: the letters around each argument.
    """
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return []
    return [name for name, value in properties.items() if isinstance(value, dict) and _is_text(value, pieces)]


def _is_text(schema: dict[str, Any], pieces: ArgumentPieces) -> bool:
    if schema.get("type") != "string" or NOT_AS_TEXT & schema.keys():
        return False
    options = schema.get("enum", [])
    return isinstance(options, list) and all(isinstance(each, str) and _ends_once(each, pieces.end) for each in options)


def _ends_once(text: str, end: str) -> bool:
    """Tell whether a text with its end behind it is read back as this text: the end begins nowhere before."""
    return f"{text}{end}".find(end) == len(text)


class Arguments(Protocol):
    """Reads the arguments of one call."""

    is_over: bool
    """True once all arguments are read."""

    def take(self, text: str) -> tuple[str, str]:
        """Take the text that has come. Return the next part of the JSON object, and the text that is not read yet."""
        ...


class JsonArguments:
    """Arguments that are a JSON object: they are passed on up to its last brace."""

    def __init__(self) -> None:
        self.is_over = False
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def take(self, text: str) -> tuple[str, str]:
        """Return the part of the text that belongs to the object, and the rest."""
        for position, char in enumerate(text):
            if self._is_escaped:
                self._is_escaped = False
            elif self._in_string:
                self._is_escaped = char == "\\"
                self._in_string = char != '"'
            elif char == '"':
                self._in_string = True
            elif char == "{":
                self._depth += 1
            elif char == "}":
                self._depth -= 1
                if self._depth == 0:
                    self.is_over = True
                    return text[: position + 1], text[position + 1 :]
        return text, ""


class SingleArguments:
    """Arguments that are written one by one.

    Values that are text are passed on as they come. Others are passed on once they are whole: as JSON if they are JSON,
    as strings if not. Text that begins no argument ends the arguments.
    """

    def __init__(self, pieces: ArgumentPieces, call_end: str, texts: Collection[str]) -> None:
        """Begin to read the arguments of a call.

        pieces: the letters around each argument. call_end: the text after all arguments. texts: the names of the
        arguments that are text.
        """
        self.is_over = False
        self._pieces = pieces
        self._call_end = call_end
        self._texts = texts
        self._state: Literal["name", "text", "json"] = "name"
        self._has_any = False
        self._num_searched = 0
        """The characters of a value's text in which there is no end."""

    def take(self, text: str) -> tuple[str, str]:
        """Return the arguments that the text completes, and the text that is not read yet."""
        written = ""
        while not self.is_over:
            read = self._name if self._state == "name" else self._value
            part, left = read(text)
            written += part
            if left == text:
                break
            text = left
        return written, text

    def _name(self, text: str) -> tuple[str, str]:
        before, after = self._pieces.before, self._pieces.after
        if text.startswith(before):
            name, mark, left = text[len(before) :].partition(after)
            if not mark:
                return "", text
            begun = f"{', ' if self._has_any else '{'}{json.dumps(name, ensure_ascii=False)}: "
            self._has_any, self._num_searched = True, 0
            self._state = "text" if name in self._texts else "json"
            return (f'{begun}"' if self._state == "text" else begun), left
        if before.startswith(text) or (self._call_end.startswith(text) and text != self._call_end):
            return "", text
        self.is_over = True
        return ("}" if self._has_any else "{}"), text

    def _value(self, text: str) -> tuple[str, str]:
        end = self._pieces.end
        at = text.find(end, max(0, self._num_searched - len(end)))
        self._num_searched = len(text)
        if at >= 0:
            state, self._state = self._state, "name"
            value = text[:at]
            return (f'{_escaped(value)}"' if state == "text" else _as_json(value)), text[at + len(end) :]
        if self._state == "json":
            return "", text
        cut = len(text) - next((size for size in range(len(end) - 1, 0, -1) if text.endswith(end[:size])), 0)
        self._num_searched = 0
        return _escaped(text[:cut]), text[cut:]


def _escaped(text: str) -> str:
    """Return a text as it is written within a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _as_json(value: str) -> str:
    """Return a value as JSON: as it is, as a word of Python's, or else as a string.

    A value that is nested too deeply to be checked is returned as it is.
    """
    value = value.strip()
    try:
        _check_json(value)
    except RecursionError:
        return value
    except msgspec.DecodeError:
        return PYTHON_WORDS.get(value) or json.dumps(value, ensure_ascii=False)
    return value
