"""The manifest of an export: its content and size, and the digest of its file.

It is written last: an export without one is incomplete.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from gateway.exports.request import ExportRequest, Format, Kind
from gateway.exports.totals import Totals

FORMAT_VERSION = 1
"""The version of the format of all files, which grows when a column, its meaning or the order of rows changes."""

State = Literal["open", "closed"]


class FileEntry(msgspec.Struct, frozen=True):
    """A file of an export."""

    name: str
    num_bytes: int
    sha256: str
    """The digest in hexadecimal."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of an export."""

    format_version: int
    organization_id: str
    project_id: str | None
    kind: Kind
    format: Format
    period: str
    state: State
    """open: rows may still come, and the next export of this period may differ."""
    as_of: str | None
    """The time of the snapshot of an open period; None for a closed one, whose rows no longer change."""
    num_rows: int
    """The number of rows of the file; a file for Stripe has several for each row of the ledger."""
    totals: Totals
    order: tuple[str, ...]
    """The columns by which rows are ordered."""
    library: str | None
    """The library that wrote the file, where its bytes depend on the library's version."""
    files: tuple[FileEntry, ...]

    def encode(self) -> bytes:
        """Return the manifest as JSON, the same bytes for equal manifests."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


class FileDigest:
    """Counts and hashes the bytes of a file as they are written."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._num_bytes = 0
        self._hash = hashlib.sha256()

    def add(self, chunk: bytes) -> None:
        """Count and hash the next bytes of the file."""
        self._num_bytes += len(chunk)
        self._hash.update(chunk)

    def entry(self) -> FileEntry:
        """Return the manifest's entry of the bytes so far: the file's name, size and SHA-256."""
        return FileEntry(self._name, self._num_bytes, self._hash.hexdigest())


def make_manifest(
    request: ExportRequest,
    *,
    state: State,
    as_of: str,
    num_rows: int,
    totals: Totals,
    order: tuple[str, ...],
    library: str | None,
    file: FileEntry,
) -> Manifest:
    """Return the manifest of an export.

    library: the version of the library that wrote the file; None where none did.
    """
    return Manifest(
        format_version=FORMAT_VERSION,
        organization_id=request.organization_id,
        project_id=request.project_id,
        kind=request.kind,
        format=request.format,
        period=request.span.text,
        state=state,
        as_of=as_of if state == "open" else None,
        num_rows=num_rows,
        totals=totals,
        order=order,
        library=library,
        files=(file,),
    )


def decode_manifest(content: bytes) -> Manifest:
    """Return the manifest that JSON text holds.

    Raises msgspec.DecodeError: when the text is not JSON.
    Raises msgspec.ValidationError: when the JSON is no manifest.
    """
    return msgspec.json.decode(content, type=Manifest)
