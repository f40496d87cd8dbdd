"""An export as one ZIP file to download: the rows, then the manifest.

The directory of a ZIP file comes at its end, so that one that was cut off does not open at all. Its entries are
streamed: their sizes stand behind them, as ZIP64 has it, and none has a time.
"""

from __future__ import annotations

import zipfile
from collections.abc import AsyncIterator

from gateway.exports.produce import Export
from gateway.exports.sink import Sink

MEDIA_TYPE = "application/zip"
COMPRESSION_LEVEL = 1


def archive_name(export: Export) -> str:
    return f"{export.request.file_name}.zip"


async def zip_chunks(export: Export) -> AsyncIterator[bytes]:
    """Yield the bytes of an archive of exports.

    Raises what the export raises; the archive then lacks its end.
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
