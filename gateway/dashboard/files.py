"""Finds the dashboard's file that a path names, with its validator and its compressed form.

A file is read again when it has changed on disk, so that an edit shows on the next load. Knows nothing about HTTP
beyond media types.
"""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path, PurePosixPath

import msgspec

FOLDER = Path(__file__).parent.parent.parent / "admin_ui"
INDEX = "index.html"
FILE_FOLDERS = frozenset({"components", "lib", "pages", "style", "vendor"})
"""Folders of which each path is a file or nothing, as is a name with an extension beside them.

Any other path that is not a file is a view of the dashboard, in which adapters have names like `a.v2`.
"""

MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}


class File(msgspec.Struct, frozen=True):
    """A file of the dashboard."""

    body: bytes
    compressed: bytes
    """The compressed body."""
    etag: str
    """A strong validator (RFC 9110, section 8.8.3) for the plain body; the compressed body's is derived from it."""
    media_type: str


class Files:
    """The files below one folder that browsers may have: those whose type is known."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._read: dict[str, tuple[int, File]] = {}

    def find(self, path: str) -> File | None:
        """Return the file that is shown at a path below the dashboard's root; None where there is nothing."""
        path = path.strip("/")
        name = path if self._is_file(path) else INDEX
        first, slash, _ = path.partition("/")
        if name is INDEX and (first in FILE_FOLDERS or (not slash and PurePosixPath(path).suffix)):
            return None
        return self._read_file(name)

    def _is_file(self, path: str) -> bool:
        parts = path.split("/")
        if any(part.startswith(".") or not part or "\\" in part or "\0" in part for part in parts):
            return False
        if PurePosixPath(path).suffix not in MEDIA_TYPES or (len(parts) > 1 and parts[0] not in FILE_FOLDERS):
            return False
        try:
            return (self._folder / path).is_file()
        except OSError:  # a name that is longer than names may be
            return False

    def _read_file(self, name: str) -> File:
        path = self._folder / name
        changed_ns = path.stat().st_mtime_ns
        read = self._read.get(name)
        if read is None or read[0] != changed_ns:
            body = path.read_bytes()
            file = File(
                body=body,
                compressed=gzip.compress(body, mtime=0),
                etag=hashlib.sha256(body).hexdigest()[:32],
                media_type=MEDIA_TYPES[path.suffix],
            )
            read = self._read[name] = (changed_ns, file)
        return read[1]
