"""The OpenAPI document and its page, encoded. They take seconds of Python."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.reference.openapi.document import document_of
from gateway.reference.openapi.operations import Operation
from gateway.reference.page.page import page
from gateway.reference.page.snippets import BASE_URL

CHUNK_BYTES = 64 << 10
"""The size in bytes beyond which a chunk of the page gets no further piece."""


class Rendered(msgspec.Struct, frozen=True):
    """The OpenAPI document and its page, encoded."""

    document: bytes
    page: list[list[bytes]]
    """The chunks of the page, each as the pieces between which the reader's own URL of the server belongs."""


def render(found: Sequence[Operation]) -> Rendered:
    """Return the document that describes these operations, and its page."""
    described = document_of(found)
    return Rendered(msgspec.json.encode(described), chunks_of(page(described)))


def chunks_of(text: str) -> list[list[bytes]]:
    """Return a page as chunks. A chunk is a list of pieces; joined by BASE_URL, these are the text of the chunk."""
    first, *rest = text.encode().split(BASE_URL.encode())
    chunks = [[each] for each in _cut(first)]
    for piece in rest:
        begin, *more = _cut(piece)
        if sum(map(len, chunks[-1])) > CHUNK_BYTES:
            chunks.append([b""])
        chunks[-1].append(begin)
        chunks += [[each] for each in more]
    return chunks


def _cut(piece: bytes) -> list[bytes]:
    """Return a piece in parts of at most CHUNK_BYTES, at least one."""
    return [piece[start : start + CHUNK_BYTES] for start in range(0, len(piece), CHUNK_BYTES)] or [b""]
