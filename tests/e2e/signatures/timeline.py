"""The answers that a model's id may have given, and when.

A change takes effect between its request and a second after its confirmation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tests.e2e.signatures.model import Signature

EFFECTIVE_S = 1.0
"""Seconds within which every gateway has applied a change."""

Answer = Signature | None
"""The signature of an answer; None for a model that does not exist."""


class _Meaning(msgspec.Struct):
    """An answer that a model id may give from one moment to another, by the monotonic clock."""

    answer: Answer
    since_s: float
    until_s: float = math.inf


class Timeline:
    """The possible answers of one model id over time. At first there is no such model."""

    def __init__(self) -> None:
        self._meanings = [_Meaning(None, -math.inf)]

    @contextmanager
    def changing(self, answer: Answer) -> Iterator[None]:
        """Wrap a change that succeeds: from now on the id may give this answer, and soon after the change no other."""
        before = self._meanings[-1]
        self._meanings.append(_Meaning(answer, time.monotonic()))
        yield
        before.until_s = min(before.until_s, time.monotonic() + EFFECTIVE_S)

    def possible(self, start_s: float, end_s: float) -> set[Answer]:
        """Return the answers that a request from start_s to end_s may have got, since it is resolved once in
        between."""
        return {each.answer for each in self._meanings if each.since_s <= end_s and each.until_s >= start_s}
