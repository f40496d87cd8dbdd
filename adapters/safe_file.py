"""Reads files that strangers wrote: only regular ones, only up to a bound, only JSON that has one meaning."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from adapters.errors import AdapterRejected


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. O_NONBLOCK keeps the open itself from waiting forever on a pipe.

    Raises AdapterRejected: when the file is missing, unreadable or not a regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise AdapterRejected([f"{path.name} is missing"]) from None
    except OSError as error:
        raise AdapterRejected([f"{path.name} cannot be read: {error.strerror}"]) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise AdapterRejected([f"{path.name} is not a regular file"])
    return os.fdopen(descriptor, "rb")


def read_json_object(raw: bytes, what: str) -> dict[str, Any]:
    """Decode a JSON object whose keys are unique: with two of one key, two readers could see two different files.

    what: the word for the source in the reason.

    Raises AdapterRejected: when `raw` is not a JSON object, or has one key twice.
    """
    try:
        # Decoded here, since from bytes the library would also take UTF-16 and UTF-32.
        value = json.loads(raw.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
        if b"\\u" in raw:  # an escape may be half a character, which no UTF-8 can hold
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        detail = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise AdapterRejected([f"{what} is not valid JSON: {detail}"]) from None
    if not isinstance(value, dict):
        raise AdapterRejected([f"{what} is not a JSON object"])
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {repeated[:100]!r} occurs twice")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
