"""Explanations of wrong bodies: the field's path, its allowed values, and its value. Knows types, not meanings."""

from __future__ import annotations

import re
from functools import cache
from itertools import islice
from typing import Any

import msgspec
from msgspec.inspect import (
    DictType,
    ListType,
    LiteralType,
    Metadata,
    StructType,
    Type,
    UnionType,
    VarTupleType,
    type_info,
)

from gateway.domain.errors import InvalidRequest, shortened

_PATH = re.compile(r" - at (?:`(?P<part>key|value)` in )?`\$\.?(?P<path>.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<field>.*)`", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<field>.*)`", re.DOTALL)
_CHOICE = re.compile(r"^Invalid (?:enum )?value (?P<value>.*)$", re.DOTALL)
_TYPE = re.compile(r"^Expected `(?P<wanted>[a-z| ]+)`, got `(?P<got>[a-z]+)`$")
_BOUND = re.compile(r"^Expected `(?P<wanted>[a-z| ]+)` (?P<bound>.*)$", re.DOTALL)
_STEP = re.compile(r"\.?([^.\[\]]+)|(\[\d*(?:\.\.\.)?\])")

PATTERN_WORDS = "pattern_in_words"
"""The key in `Meta.extra` of a string with a pattern: its value says in words how the string has to be."""

MAX_ENTRIES = 1024
"""The most entries of a mapping that is searched for the wrong one: no field may have more."""

_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
    "null": "null",
}


def explain(message: str, kind: Any, body: bytes = b"") -> InvalidRequest:
    """Return the error that says why a body cannot be read as the type `kind`.

    message: msgspec's error message. body: the raw body, which is searched for the entry at fault in a mapping.
    """
    error = _explained_error(message, kind)
    found = _PATH.search(message)
    if found is None or error.code == "unknown_parameter" or not (found["part"] or found["path"].endswith("[...]")):
        return error
    key = _wrong_key(kind, found["path"].removesuffix("[...]"), body)
    if key is None:
        return error
    text = f"{error.message.removesuffix('.')} (the wrong entry is '{shortened(key)}')."
    return InvalidRequest(text, param=error.param, code=error.code)


def _wrong_key(kind: Any, field: str, body: bytes) -> str | None:
    """Return the key of the first entry that may not be in a top-level mapping of the body.

    Return None where the field is no such mapping, or where the rest of the body cannot be read.
    """
    try:
        types = {each.encode_name: each.type for each in msgspec.structs.fields(kind)}
        entries = msgspec.json.decode(body)[field]
        for key in islice(entries, MAX_ENTRIES):
            try:
                msgspec.convert({key: entries[key]}, types[field], str_keys=True)
            except msgspec.ValidationError:
                return str(key)
    except (msgspec.DecodeError, RecursionError, LookupError, TypeError):
        return None
    return None


def _explained_error(message: str, kind: Any) -> InvalidRequest:
    found = _PATH.search(message)
    path = shortened(found["path"].replace("[...]", "")) if found else ""  # it may hold a client's own key
    reason = message[: found.start()] if found else message
    if unknown := _UNKNOWN.match(reason):
        param = _join_path(path, shortened(unknown["field"]))
        return InvalidRequest(f"Unrecognized request argument supplied: {param}", param=param, code="unknown_parameter")
    if missing := _MISSING.match(reason):
        param = _join_path(path, missing["field"])
        return InvalidRequest(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")
    where, at = f" for '{path}'" if path else " for the body", path or None
    if wrong := _TYPE.match(reason):
        wanted, got = _joined_by_or(wrong["wanted"].split(" | ")), _WORDS.get(wrong["got"], wrong["got"])
        text = f"Invalid type{where}: expected {wanted}, but got {got} instead."
        return InvalidRequest(text, param=at, code="invalid_type")
    if found and found["part"] == "key" and (wrong := _CHOICE.match(reason)):  # one of a few keys has to be given
        param = _join_path(path, shortened(wrong["value"].removesuffix(".").strip("'")))
        return InvalidRequest(f"Unrecognized request argument supplied: {param}", param=param, code="unknown_parameter")
    if (wrong := _CHOICE.match(reason)) and (values := _allowed(kind, path)):
        allowed = _joined_by_or([f"'{value}'" for value in values])
        text = f"Invalid value{where}: {shortened(wrong['value'])}. Supported values are: {allowed}."
        return InvalidRequest(text, param=at, code="invalid_value")
    if "matching regex" in reason and (words := _pattern_words(kind, path)):
        return InvalidRequest(f"Invalid value{where}: expected {words[0]}.", param=at, code="invalid_value")
    if wrong := _BOUND.match(reason):
        wanted = " or ".join(_WORDS.get(each, each) for each in wrong["wanted"].split(" | "))
        bound = wrong["bound"].replace(r"\\A", "^").replace(r"\\Z", "$")  # as the document has it
        part = f"each {found['part']} must be " if found and found["part"] else "expected "
        text = f"Invalid value{where}: {part}{wanted} {shortened(bound)}."
        return InvalidRequest(text, param=at, code="invalid_value")
    return InvalidRequest(
        f"Invalid value{where}: {shortened(reason.replace('`', ''))}.", param=at, code="invalid_value"
    )


def _joined_by_or(words: list[str]) -> str:
    words = [_WORDS.get(word, word) for word in words if word != "null" or len(words) == 1]
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _allowed(kind: Any, path: str) -> list[Any]:
    """Return the values that the field at a path may have; none where the field is no choice among values."""
    return [value for each in _types_at(kind, path) for one in _alternatives(each) for value in _enumerated_values(one)]


def _pattern_words(kind: Any, path: str) -> list[str]:
    """Return the words for the pattern of the field at a path; none where they are not declared."""
    found = [one for each in _types_at(kind, path) for one in (each, *_unions(each)) if isinstance(one, Metadata)]
    return [one.extra[PATTERN_WORDS] for one in found if one.extra and PATTERN_WORDS in one.extra]


def _types_at(kind: Any, path: str) -> list[Type]:
    """Return the possible types of the field at a path."""
    found = [_inspected(kind)]
    for step in _STEP.finditer(path):
        found = [below for each in found for below in _types_below(each, step[1])]
    return found


@cache
def _inspected(kind: Any) -> Type:
    """Return the description of a type of body, made once for each type, since that takes milliseconds."""
    return type_info(kind)


def _types_below(kind: Type, field: str | None) -> list[Type]:
    """Return the possible types one step below: of a field, or of an element."""
    found: list[Type] = []
    for each in _alternatives(kind):
        if isinstance(each, StructType) and field is not None:
            found += [one.type for one in each.fields if one.encode_name == field]
        elif isinstance(each, DictType):
            found.append(each.value_type)
        elif isinstance(each, ListType | VarTupleType) and field is None:
            found.append(each.item_type)
    return found


def _unions(kind: Type) -> list[Type]:
    kind = kind.type if isinstance(kind, Metadata) else kind
    return list(kind.types) if isinstance(kind, UnionType) else []


def _alternatives(kind: Type) -> list[Type]:
    return [each.type if isinstance(each, Metadata) else each for each in _unions(kind) or [kind]]


def _enumerated_values(kind: Type) -> list[Any]:
    if isinstance(kind, LiteralType):
        return list(kind.values)
    return [kind.tag] if isinstance(kind, StructType) and kind.tag is not None else []


def _join_path(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field
