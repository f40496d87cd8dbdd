"""Padding of streamed events, so that their sizes do not tell how long each token is (Weiss et al., 2024: what an
observer of encrypted answers can read from them). Knows nothing of what is in the events."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing

WIDTH = 32
"""Bytes that hold almost every token: texts of 0 to WIDTH - 1 bytes look alike, as do those of the next WIDTH."""

_END = b"\n\n"


async def obfuscated(events: AsyncGenerator[bytes], empty: bytes) -> AsyncGenerator[bytes]:
    """The same events, each object with a field `obfuscation` of random text that fills its size up to a multiple of
    WIDTH more than that of `empty`, an event without text."""
    async with aclosing(events):
        async for data in events:
            yield b"".join(_padded(each, len(empty) - len(_END)) for each in data.split(_END)[:-1])


def _padded(event: bytes, empty_size: int) -> bytes:
    if not event.endswith(b"}"):
        return event + _END  # [DONE]
    count = WIDTH - (len(event) - empty_size) % WIDTH
    return b'%b,"obfuscation":"%b"}%b' % (event[:-1], secrets.token_urlsafe(WIDTH)[:count].encode(), _END)
