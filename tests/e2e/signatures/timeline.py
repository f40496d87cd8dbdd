"""What a model's id may have stood for, and when: a change takes effect somewhere between being asked for and a second
after it was confirmed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tests.e2e.signatures.model import Signature

EFFECTIVE_S = 1.0
"""Within which every gateway follows a change."""

Answer = Signature | None
"""None: there is no such model."""


class _Meaning(msgspec.Struct):
    answer: Answer
    since_s: float
    until_s: float = math.inf


class Timeline:
    """Of one model id. It begins without a meaning."""

    def __init__(self) -> None:
        self._meanings = [_Meaning(None, -math.inf)]

    @contextmanager
    def changing(self, answer: Answer) -> Iterator[None]:
        """Around a change that succeeds: from now on it may stand for this, and soon after the change for nothing
        else."""
        before = self._meanings[-1]
        self._meanings.append(_Meaning(answer, time.monotonic()))
        yield
        before.until_s = min(before.until_s, time.monotonic() + EFFECTIVE_S)

    def possible(self, start_s: float, end_s: float) -> set[Answer]:
        """Return what a request that ran from start to end may have got: it is resolved once in between."""
        return {each.answer for each in self._meanings if each.since_s <= end_s and each.until_s >= start_s}
