"""Writes an adapter's files from a multipart body to a folder, in bounded memory and up to a bounded size.

The form has the field `name`, perhaps `promote` and `base`, and either the files `adapter_config.json` and
`adapter_model.safetensors`, under these very names, or one file `archive`; file names that a client sends along are
never used. Knows nothing about what the files contain.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
from litestar import Request
from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header  # type: ignore[import-untyped]

from adapters.store import FILE_NAMES
from gateway.domain.errors import InvalidRequest
from gateway.http.fields import decode
from gateway.http.shape import Form
from gateway.http.upload_body import MAX_FIELD_BYTES, bounded_chunks

T = TypeVar("T")

FIELDS = ("name", "promote", "base")
ARCHIVE = "archive"
FORM = Form(required=("name",), optional=("promote", "base", ARCHIVE, *FILE_NAMES))


class Uploaded(msgspec.Struct, frozen=True):
    """An upload in one piece, with its form's fields and its files."""

    name: str
    """The name of the adapter, unchecked."""
    promote: bool
    """True if the new version is to become the adapter's current one."""
    content: Path
    """The archive, or the folder with the two files."""
    base: str | None
    """The model that the adapter is for, unchecked; None where the client did not say."""


async def receive_adapter(request: Request[Any, Any, Any], folder: Path, max_bytes: int) -> Uploaded:
    """Write the parts of a multipart upload into a folder, which is empty.

    Raises InvalidRequest: when a part is missing, unknown or there twice, or no byte arrives for `IDLE_S`.
    Raises BodyTooLarge: when more than max_bytes arrive.
    """
    content_type, options = parse_options_header(request.headers.get("content-type", ""))
    if content_type != "multipart/form-data" or not options.get("boundary"):
        raise InvalidRequest("The body must be multipart/form-data.", code="invalid_content_type")
    receiver = _Receiver(folder)
    try:
        with PushMultipartParser(options["boundary"], max_segment_count=len(FORM.names) + 1) as parser:
            async for chunk in bounded_chunks(request, max_bytes):
                for event in parser.parse(chunk):
                    await receiver.take(event)
    except MultipartError as error:
        raise InvalidRequest(f"The body is not valid multipart/form-data: {error}.", code="invalid_form") from None
    finally:
        receiver.close()
    return receiver.result()


async def read_json(request: Request[Any, Any, Any], kind: type[T], max_bytes: int) -> T:
    """Decode the JSON body of a route that takes uploads too, so that the framework does not bound its bodies.

    Raises InvalidRequest: when the body is not JSON of this kind, or no byte arrives for `IDLE_S`.
    Raises BodyTooLarge: when more than max_bytes arrive.
    """
    body = b"".join([chunk async for chunk in bounded_chunks(request, max_bytes)])
    return decode(msgspec.json.Decoder(kind), body or b"{}")


class _Receiver:
    """Takes the events of the multipart parser: the beginning of a part, the part's chunks, and None at its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._fields: dict[str, bytearray] = {}
        self._field = ""
        self._files: set[str] = set()

    async def take(self, event: MultipartSegment | bytes | bytearray | None) -> None:
        if isinstance(event, MultipartSegment):
            self._begin_part(event.name)
        elif event is None:
            self.close()
        elif self._file is not None:
            # A slow disk must not hold up the event loop.
            await asyncio.to_thread(self._file.write, event)
        else:
            value = self._fields[self._field]
            value += event
            if len(value) > MAX_FIELD_BYTES:
                raise InvalidRequest(
                    f"The value of '{self._field}' is too long.", param=self._field, code="invalid_value"
                )

    def result(self) -> Uploaded:
        if "name" not in self._fields:
            raise _missing_part("name")
        promote = self._fields.get("promote", b"true").decode(errors="replace")
        if promote not in ("true", "false"):
            raise InvalidRequest(
                "Invalid value for 'promote': expected true or false.", param="promote", code="invalid_value"
            )
        if ARCHIVE in self._files and len(self._files) > 1:
            raise InvalidRequest(
                f"Send either one archive as '{ARCHIVE}' or the adapter's two files, not both.",
                param=ARCHIVE,
                code="invalid_value",
            )
        if ARCHIVE not in self._files:
            for part in FILE_NAMES:
                if part not in self._files:
                    raise _missing_part(part)
        name = self._fields["name"].decode(errors="replace")
        content = self._folder / ARCHIVE if ARCHIVE in self._files else self._folder
        base = self._fields["base"].decode(errors="replace") if "base" in self._fields else None
        return Uploaded(name, promote == "true", content, base)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin_part(self, part: str) -> None:
        if part in self._fields or part in self._files:
            raise InvalidRequest(f"The form has the part '{part}' twice.", param=part, code="invalid_value")
        if part in FIELDS:
            self._field = part
            self._fields[part] = bytearray()
        elif part in FORM.names:
            self._files.add(part)
            self._file = (self._folder / part).open("xb")
        else:
            raise InvalidRequest(
                f"Unrecognized request argument supplied: {part}", param=part, code="unknown_parameter"
            )


def _missing_part(part: str) -> InvalidRequest:
    return InvalidRequest(f"Missing required parameter: '{part}'.", param=part, code="missing_required_parameter")
