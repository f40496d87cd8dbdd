"""Files and uploads as OpenAI's clients send and expect them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.files.uploads import MAX_PARTS, MAX_UPLOAD_BYTES

MIN_SECONDS, MAX_SECONDS = 3600, 2_592_000

FilePurpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
FileName = Annotated[str, Meta(min_length=1, max_length=255)]


class ExpiresAfter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The time after which a file expires."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=MIN_SECONDS, le=MAX_SECONDS)]


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    """A file."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | msgspec.UnsetType = msgspec.UNSET
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of files."""

    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(msgspec.Struct, frozen=True):
    """The reply to a deletion of a file."""

    id: str
    deleted: bool = True
    object: Literal["file"] = "file"


class CreateUpload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/uploads."""

    filename: FileName
    purpose: FilePurpose
    bytes: Annotated[int, Meta(ge=1, le=MAX_UPLOAD_BYTES)]
    """The size of the whole file."""
    mime_type: Annotated[str, Meta(min_length=1, max_length=255)]
    expires_after: ExpiresAfter | None = None


class CompleteUpload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /v1/uploads/{upload_id}/complete."""

    part_ids: Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(min_length=1, max_length=MAX_PARTS)]
    """The parts of the file in their order."""
    md5: Annotated[str, Meta(pattern="^[0-9a-fA-F]{32}$")] | None = None
    """The MD5 that the whole file is to have, in hexadecimal."""


class UploadObject(msgspec.Struct, frozen=True, kw_only=True):
    """An upload."""

    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: str
    file: FileObject | None = None


class UploadPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an upload."""

    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    upload_id: str
