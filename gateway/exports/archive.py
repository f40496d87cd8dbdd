"""An export as one ZIP file to download: the rows, then the manifest.

The directory of a ZIP file comes at its end, so that one that was cut off does not open at all. Its entries are
streamed: their sizes stand behind them, as ZIP64 has it, and none has a time.
"""

from __future__ import annotations

import zipfile
from collections.abc import AsyncIterator
from typing import Protocol

from gateway.exports.sink import Sink

MEDIA_TYPE = "application/zip"
COMPRESSION_LEVEL = 1


class HasFileNames(Protocol):
    """A request for an export, by the names of the files that it makes."""

    @property
    def file_name(self) -> str:
        """The name of the file with the rows."""

    @property
    def manifest_name(self) -> str:
        """The name of the manifest's file."""


class EncodableManifest(Protocol):
    """A manifest that can be written as bytes."""

    def encode(self) -> bytes:
        """Return the manifest as bytes."""


class ArchivableExport(Protocol):
    """An export to be archived: the file's chunks, and its manifest."""

    @property
    def request(self) -> HasFileNames:
        """The request for the export."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the bytes of the file with the rows."""

    def manifest(self) -> EncodableManifest:
        """Return the manifest, once all chunks were read."""


def archive_name(export: ArchivableExport) -> str:
    """Return the name of an export's archive."""
    return f"{export.request.file_name}.zip"


async def zip_chunks(export: ArchivableExport) -> AsyncIterator[bytes]:
    """Yield the bytes of a ZIP archive with an export and its manifest.

    Raises the errors of the export: when its next rows cannot be read; the archive then lacks its end.
    """
    sink = Sink()
    archive = zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED, compresslevel=COMPRESSION_LEVEL)
    with archive.open(export.request.file_name, "w", force_zip64=True) as file:
        async for chunk in export.chunks():
            file.write(chunk)
            yield sink.drain()
    with archive.open(export.request.manifest_name, "w") as file:
        file.write(export.manifest().encode())
    archive.close()
    yield sink.drain()
