"""Bodies that are too large for memory: as they come, bounded, and multipart forms with one file among their fields.

Knows nothing of the bytes' meaning.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any, Protocol

import msgspec
from litestar import Request
from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header  # type: ignore[import-untyped]

from gateway.domain.errors import BodyTooLarge, InvalidRequest
from gateway.http.fields import missing_field

IDLE_S = 30.0
"""Seconds without a byte after which an upload ends, since its client may have left and the bytes take room."""

MAX_FIELD_BYTES = 1024
ROOM_FOR_FIELDS = 64 << 10
"""The most bytes of a form outside of its file."""


class Sink(Protocol):
    """The receiver of the bytes of a form's file."""

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes of the file."""


class UploadedForm(msgspec.Struct, frozen=True):
    """The form of an upload, whose file went to the sink."""

    fields: dict[str, str]
    name: str
    """The file's name as the client gave it, unchecked; "" where there is none."""


async def receive_form(
    request: Request[Any, Any, Any], sink: Sink, *, file: str, fields: Collection[str], max_bytes: int
) -> UploadedForm:
    """Read a form with the given fields, of which any may be missing, and the part `file`, whose bytes go to the sink.

    Raises InvalidRequest: when a part is missing, unknown or there twice, or no byte comes for IDLE_S.
    Raises BodyTooLarge: when the file has more than max_bytes.
    """
    content_type, options = parse_options_header(request.headers.get("content-type", ""))
    if content_type != "multipart/form-data" or not options.get("boundary"):
        raise InvalidRequest("The body must be multipart/form-data.", code="invalid_content_type")
    receiver = _Receiver(sink, file, fields, max_bytes)
    try:
        with PushMultipartParser(options["boundary"], max_segment_count=len(fields) + 2) as parser:
            async for chunk in bounded_chunks(request, max_bytes + ROOM_FOR_FIELDS):
                for event in parser.parse(chunk):
                    await receiver.take(event)
    except MultipartError as error:
        raise InvalidRequest(f"The body is not valid multipart/form-data: {error}.", code="invalid_form") from None
    return receiver.result()


async def bounded_chunks(request: Request[Any, Any, Any], max_bytes: int) -> AsyncIterator[bytes]:
    """Yield the chunks of a request's body as they come.

    Raises BodyTooLarge: when more than max_bytes come.
    Raises InvalidRequest: when no byte comes for `IDLE_S`.
    """
    num_bytes = 0
    async for chunk in unstalled_chunks(request.stream(), IDLE_S):
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise BodyTooLarge(f"The upload is larger than {max_bytes} bytes.")
        if chunk:
            yield chunk


async def unstalled_chunks(chunks: AsyncIterator[bytes], idle_s: float) -> AsyncIterator[bytes]:
    """Yield chunks as they arrive, as long as none of them takes longer than idle_s to come.

    Raises InvalidRequest: when no chunk comes for idle_s.
    """
    while True:
        try:
            async with asyncio.timeout(idle_s):
                chunk = await anext(chunks, None)
        except TimeoutError:
            raise InvalidRequest(
                f"The upload stalled: no byte arrived for {idle_s:g} seconds.", code="upload_stalled"
            ) from None
        if chunk is None:
            return
        yield chunk


class _Receiver:
    """The handler of the parser's events: a segment, its chunks, None at its end."""

    def __init__(self, sink: Sink, file: str, fields: Collection[str], max_bytes: int) -> None:
        self._sink = sink
        self._file = file
        self._known = fields
        self._max_bytes = max_bytes
        self._values: dict[str, bytearray] = {}
        self._part = ""
        self._name: str | None = None
        self._num_bytes = 0

    async def take(self, event: MultipartSegment | bytes | bytearray | None) -> None:
        if isinstance(event, MultipartSegment):
            self._begin_part(event)
        elif event is None:
            return
        elif self._part == self._file:
            self._num_bytes += len(event)
            if self._num_bytes > self._max_bytes:
                raise BodyTooLarge(f"The file is larger than {self._max_bytes} bytes.", param=self._file)
            await self._sink.write(event)
        else:
            value = self._values[self._part]
            value += event
            if len(value) > MAX_FIELD_BYTES:
                raise InvalidRequest(
                    f"The value of '{self._part}' is too long.", param=self._part, code="invalid_value"
                )

    def result(self) -> UploadedForm:
        if self._name is None:
            raise missing_field(self._file)
        return UploadedForm({name: value.decode(errors="replace") for name, value in self._values.items()}, self._name)

    def _begin_part(self, segment: MultipartSegment) -> None:
        part = segment.name
        if part in self._values or (part == self._file and self._name is not None):
            raise InvalidRequest(f"The form has the part '{part}' twice.", param=part, code="invalid_value")
        if part == self._file:
            self._name = segment.filename or ""
        elif part in self._known:
            self._values[part] = bytearray()
        else:
            shown = part[:64]
            raise InvalidRequest(
                f"Unrecognized request argument supplied: {shown}", param=shown, code="unknown_parameter"
            )
        self._part = part
