"""The OpenAPI document and its page, encoded; made by a process of its own, since they take seconds of Python.

`python -m gateway.reference.page.rendering` reads operations from its input and writes what it made of them.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterable

import msgspec

from gateway.reference.openapi.document import document_of
from gateway.reference.openapi.operations import Operation
from gateway.reference.page.page import page
from gateway.reference.page.snippets import BASE_URL
from gateway.support.process import end_module, start_module

CHUNK_BYTES = 64 << 10
"""The size in bytes beyond which a chunk of the page gets no further piece."""

NICENESS = 10
"""The niceness of the process: requests come first, and readers of the page still get it on a busy machine."""


class Rendered(msgspec.Struct, frozen=True):
    """The OpenAPI document and its page, encoded."""

    document: bytes
    page: list[list[bytes]]
    """The chunks of the page, each as the pieces between which the reader's own URL of the server belongs."""


def render(found: Iterable[Operation]) -> Rendered:
    """Return the document that describes these operations, and its page."""
    described = document_of(found)
    return Rendered(msgspec.json.encode(described), chunks_of(page(described)))


async def render_apart(found: Iterable[Operation]) -> Rendered:
    """Return the same as `render`, which a process of its own computes meanwhile. Cancelling ends the process.

    Raises RuntimeError: when the process failed, or could not be started.
    """
    try:
        process = await start_module(__spec__.name)
    except OSError as error:
        raise RuntimeError(f"the process that renders the documentation does not start: {error}") from error
    try:
        made, _ = await process.communicate(pickle.dumps(list(found)))
    finally:
        await end_module(process)
    if process.returncode != 0:
        raise RuntimeError(f"the process that renders the documentation ended with status {process.returncode}")
    return msgspec.msgpack.decode(made, type=Rendered)


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


def main() -> None:
    """Render the operations that come through the input."""
    os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
    made = render(pickle.load(sys.stdin.buffer))  # noqa: S301 - of the gateway that started this process
    sys.stdout.buffer.write(msgspec.msgpack.encode(made))


if __name__ == "__main__":
    main()
