"""Padding of streamed events, so that their sizes do not tell how long each token is.

See Weiss et al., 2024, for what an observer of encrypted answers can read from sizes. Knows nothing of what is in the
events.
"""

from __future__ import annotations

import secrets
from typing import Generic, TypeVar

from gateway.http.sse import Encoder

T = TypeVar("T")

WIDTH = 32
"""The step of padded sizes in bytes: texts of 0 to WIDTH - 1 bytes get one size, those of the next WIDTH another."""

_END = b"\n\n"


class Obfuscated(Generic[T]):
    """An encoder of events that hides the sizes of texts in the events of another encoder.

    The JSON object of each event gets a field `obfuscation` with random text. With the field, the object is larger than
    that of `empty`, an event without text, by a multiple of WIDTH bytes.
    """

    def __init__(self, encoder: Encoder[T], empty: bytes) -> None:
        self._encoder = encoder
        self._empty_size = len(empty) - len(_END)

    async def encode(self, item: T) -> bytes:
        """Return the events of an item, each padded."""
        return self._all_padded(await self._encoder.encode(item))

    def end(self) -> bytes:
        """Return the events after the last item, each padded."""
        return self._all_padded(self._encoder.end())

    def _all_padded(self, events: bytes) -> bytes:
        return b"".join(_with_padding(each, self._empty_size) for each in events.split(_END)[:-1])


def _with_padding(event: bytes, empty_size: int) -> bytes:
    if not event.endswith(b"}"):
        return event + _END  # [DONE]
    return b'%b,"obfuscation":"%b"}%b' % (event[:-1], padding(len(event) - empty_size).encode(), _END)


def padding(size: int) -> str:
    """Return random text that fills a size in bytes up to a multiple of WIDTH."""
    return secrets.token_urlsafe(WIDTH)[: WIDTH - size % WIDTH]
