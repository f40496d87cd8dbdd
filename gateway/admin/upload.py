"""An adapter's files from a multipart body to a folder, in bounded memory and of bounded size.

The form has the field `name` and the files `adapter_config.json` and `adapter_model.safetensors`, under these very
names; file names that a client sends along are never used. Knows nothing about what the files contain.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any

from litestar import Request
from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header  # type: ignore[import-untyped]

from adapters.store import FILE_NAMES
from gateway.errors import BodyTooLarge, InvalidRequest

MAX_NAME_BYTES = 1024
NAME_FIELD = "name"
FORM = (NAME_FIELD, *FILE_NAMES)


async def receive_adapter(request: Request[Any, Any, Any], folder: Path, max_bytes: int) -> str:
    """Write both files into folder and return the field `name`, unchecked.

    Raises InvalidRequest naming the part that is missing, unknown or there twice, BodyTooLarge beyond max_bytes.
    """
    content_type, options = parse_options_header(request.headers.get("content-type", ""))
    if content_type != "multipart/form-data" or not options.get("boundary"):
        raise InvalidRequest("The body must be multipart/form-data.", code="invalid_content_type")
    receiver = _Receiver(folder)
    try:
        with PushMultipartParser(options["boundary"], max_segment_count=len(FILE_NAMES) + 2) as parser:
            async for chunk in _limited(request, max_bytes):
                for event in parser.parse(chunk):
                    await receiver.take(event)
    except MultipartError as error:
        raise InvalidRequest(f"The body is not valid multipart/form-data: {error}.", code="invalid_form") from None
    finally:
        receiver.close()
    return receiver.name()


async def _limited(request: Request[Any, Any, Any], max_bytes: int) -> AsyncIterator[bytes]:
    num_bytes = 0
    async for chunk in request.stream():
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise BodyTooLarge(f"The upload is larger than {max_bytes} bytes.")
        if chunk:
            yield chunk


class _Receiver:
    """Takes the parser's events: a segment, its chunks, None at its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._name = bytearray()
        self._seen: set[str] = set()

    async def take(self, event: MultipartSegment | bytes | bytearray | None) -> None:
        if isinstance(event, MultipartSegment):
            self._begin(event.name)
        elif event is None:
            self.close()
        elif self._file is not None:
            # A slow disk must not hold up the event loop.
            await asyncio.to_thread(self._file.write, event)
        else:
            self._name += event
            if len(self._name) > MAX_NAME_BYTES:
                raise InvalidRequest(f"'{NAME_FIELD}' is too long.", param=NAME_FIELD, code="invalid_value")

    def name(self) -> str:
        for part in (NAME_FIELD, *FILE_NAMES):
            if part not in self._seen:
                raise InvalidRequest(
                    f"Missing required parameter: '{part}'.", param=part, code="missing_required_parameter"
                )
        return self._name.decode(errors="replace")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self, part: str) -> None:
        if part in self._seen:
            raise InvalidRequest(f"'{part}' is there twice.", param=part, code="invalid_value")
        self._seen.add(part)
        if part in FILE_NAMES:
            self._file = (self._folder / part).open("xb")
        elif part != NAME_FIELD:
            raise InvalidRequest(
                f"Unrecognized request argument supplied: {part}", param=part, code="unknown_parameter"
            )
