"""The work that a JSON text makes, known before anything is made of the text.

A few megabytes of `[]` would be a million objects, and no other request would go on meanwhile. Work is counted on the
bytes, in milliseconds, outside of strings. Knows types of bodies, not the meaning of their fields.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from gateway.domain.errors import InvalidRequest
from gateway.http.explain import explain

CONTAINER_WORK, STRING_WORK, ELEMENT_WORK = 8, 2, 1
"""The work of an object or array, of a string (keys included) and of a comma: about their relative times."""

MAX_WORK = 384 << 10
"""The most work of one body that is decoded: 300,000 token ids, or 20,000 content parts.

Such a body takes some 20 ms.
"""

FEW_STRINGS = 10_000
"""The most strings of a text for which cutting them out is faster than marking each byte as inside or outside."""

UNCOUNTED_BYTES = MAX_WORK // CONTAINER_WORK
"""The size in bytes up to which no text can exceed MAX_WORK."""

_NULL, _SKIPPED = b"null", b"{}"
"""JSON's null, and the value that is decoded in place of a field that is refused whatever it holds."""


def are_too_much(texts: list[str]) -> bool:
    """Tell whether decoding these JSON texts might take more than MAX_WORK together.

    The content of their strings counts as well, so that many small texts are counted at once.
    """
    if sum(map(len, texts)) <= UNCOUNTED_BYTES // 4:  # a character may be four bytes
        return False
    return _sum(np.frombuffer("".join(texts).encode(errors="replace"), np.uint8), None) > MAX_WORK


def affordable(body: bytes, kind: Any) -> bytes:
    """Return the body, or an equivalent one, after a check that decoding it to `kind` takes at most MAX_WORK.

    kind: a struct. Fields of the struct with the type Any are refused later, whatever they hold. If those fields make
    the work, the result has an empty object in place of each one, which is refused in the same way.

    Raises InvalidRequest: when decoding takes more work; the error names the field that takes most.
    Raises msgspec.DecodeError: for a text that is no JSON, and for a field that the struct does not have.
    """
    total = 0 if len(body) <= UNCOUNTED_BYTES else work_of(body)
    if total <= MAX_WORK:
        return body
    skimmed = _skimmer(kind).decode(body)
    fields = {name: bytes(getattr(skimmed, name)) for name in skimmed.__struct_fields__}
    refused = {field.encode_name for field in msgspec.structs.fields(kind) if field.type is Any}
    num_refused_bytes = sum(len(fields[name]) for name in refused)
    # Not the sum over other fields: one that is given many times is decoded as often, and only its last value is here.
    if len(body) - num_refused_bytes > UNCOUNTED_BYTES:
        total -= sum(work_of(fields[name]) for name in refused)
        if total > MAX_WORK:
            heaviest = max((name for name in fields if name not in refused), key=lambda name: len(fields[name]))
            raise _refusal(heaviest, fields[heaviest], kind)
    shown = {name: raw if raw == _NULL or name not in refused else _SKIPPED for name, raw in fields.items() if raw}
    return b"{%b}" % b",".join(b'"%b":%b' % (name.encode(), raw) for name, raw in shown.items())


def _refusal(field: str, raw: bytes, kind: Any) -> InvalidRequest:
    """Return the error for a field: about its value if the field can never hold such a value, else about its size."""
    empty = b"[]" if raw.startswith(b"[") else _SKIPPED
    try:
        msgspec.json.decode(b'{"%b":%b}' % (field.encode(), empty), type=kind)
    except msgspec.ValidationError as error:
        wrong = explain(str(error), kind)
        if wrong.code == "invalid_type" and wrong.param == field:
            return wrong
    return InvalidRequest(
        f"Invalid value for '{field}': it holds more JSON objects, arrays and values than one request may have.",
        param=field,
        code="invalid_value",
    )


@contextmanager
def without_collector() -> Iterator[None]:
    """Keep the collector of reference cycles off while a large body is decoded.

    The collector would walk through everything several times. Decoding makes no cycles.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@cache
def _skimmer(kind: Any) -> msgspec.json.Decoder[msgspec.Struct]:
    """Return a decoder to a struct that has each field of `kind` as raw, undecoded bytes; b"" for an absent field."""
    fields = [(field.encode_name, msgspec.Raw, msgspec.Raw()) for field in msgspec.structs.fields(kind)]
    return msgspec.json.Decoder(
        msgspec.defstruct(f"Skimmed{kind.__name__}", fields, forbid_unknown_fields=True, frozen=True)
    )


def work_of(text: bytes, enough: int = MAX_WORK) -> int:
    """Return the work of a JSON text.

    If a quick upper bound of the work is at most `enough`, that bound is returned instead.
    """
    codes = np.frombuffer(text, np.uint8)
    bound = _sum(codes, None)
    if bound <= enough:
        return bound
    if b"\\" in text:  # what a backslash escapes is no end of a string
        text = text.replace(rb"\\", b"__").replace(rb"\"", b"__")
        codes = np.frombuffer(text, np.uint8)
    num_strings = _num_strings(codes)
    if num_strings <= FEW_STRINGS:
        outside = b"".join(text.split(b'"')[::2])
        return num_strings * STRING_WORK + _sum(np.frombuffer(outside, np.uint8), None)
    is_outside = np.bitwise_xor.accumulate((codes == ord('"')).view(np.uint8)) == 0
    return _sum(codes, is_outside)


def _num_strings(codes: NDArray[np.uint8]) -> int:
    return int(np.count_nonzero(codes == ord('"'))) // 2


def _sum(codes: NDArray[np.uint8], where: NDArray[np.bool_] | None) -> int:
    """Return the work of a text's bytes. where: True for the bytes at which brackets and commas count; None: all."""

    def count(char: str) -> int:
        is_char = codes == ord(char)
        return int(np.count_nonzero(is_char if where is None else is_char & where))

    num_containers = count("[") + count("{")
    return num_containers * CONTAINER_WORK + _num_strings(codes) * STRING_WORK + count(",") * ELEMENT_WORK
