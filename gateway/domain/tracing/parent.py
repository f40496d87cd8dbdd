"""The header `traceparent` of W3C Trace Context, level 1: read as the specification says, and written anew.

https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import re

import msgspec

HEADER = "traceparent"
SAMPLED = 0x01
"""The flag for a trace that the caller records, the only flag that the specification defines."""

_VERSION_0 = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_LATER = re.compile(r"(?!00|ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


class Parent(msgspec.Struct, frozen=True):
    """The span of another process that a request belongs to."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    is_sampled: bool
    """True where the caller records its own span."""


def read_parent(header: str) -> Parent | None:
    """Return the parent that a header names; None for one that is malformed, which has to be ignored.

    A header of a later version is read as far as this version goes.
    """
    found = _VERSION_0.fullmatch(header) or _LATER.fullmatch(header)
    if found is None:
        return None
    trace_id, span_id, flags = found.groups()
    if trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return Parent(trace_id, span_id, bool(int(flags, 16) & SAMPLED))


def write_parent(trace_id: str, span_id: str, *, is_sampled: bool) -> str:
    """Return the header that names a span as the parent of further requests.

    is_sampled: True: the trace is recorded, and receivers should record their part.
    """
    return f"00-{trace_id}-{span_id}-{'01' if is_sampled else '00'}"
