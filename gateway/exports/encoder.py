"""Encoders, which turn rows into the bytes of one file, a batch at a time, and the encoder of each format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec


class Encoder(Protocol):
    """The encoder of one file.

    The bytes of `start`, of every `encode` in order and of `finish` are the file, whatever the batches. The bytes that
    are held back between two calls are bounded.
    """

    def start(self) -> bytes:
        """Return the bytes before all rows."""

    def encode(self, rows: Sequence[Any]) -> bytes:
        """Return the bytes of a batch of rows."""

    def finish(self) -> bytes:
        """Return the bytes after all rows."""


class JsonLines:
    """One JSON object per line (https://jsonlines.org), keys in the order of the struct's fields.

    Integers are written in full: money in nanos may exceed 2^53, beyond which some readers are not exact.
    """

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder()

    def start(self) -> bytes:
        """Return no bytes: the file begins with its first row."""
        return b""

    def encode(self, rows: Sequence[Any]) -> bytes:
        """Return one line of JSON for each row."""
        return self._encoder.encode_lines(rows)

    def finish(self) -> bytes:
        """Return no bytes: the last row ends the file."""
        return b""
