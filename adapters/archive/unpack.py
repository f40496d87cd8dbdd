"""Tells archives by their content, never by their name, and unpacks them."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from typing import BinaryIO

from adapters.archive.output import Output
from adapters.archive.tar import InflatedBytes, TarBytes, unpack_tar
from adapters.archive.zip import unpack_zip
from adapters.errors import AdapterRejected

_OTHER_FORMATS = {
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ": "an xz file",
    b"\x28\xb5\x2f\xfd": "a Zstandard file",
    b"7z\xbc\xaf": "a 7z archive",
    b"Rar!": "a RAR archive",
    b"\x80": "a pickle, or weights without their configuration",
}


def unpack(archive: BinaryIO, files: Mapping[str, BinaryIO], max_bytes: int) -> list[str]:
    """Write the adapter's two files to `files` (by name, open and empty); return the members that were ignored.

    max_bytes: the most bytes of both files together.

    Raises AdapterRejected: when the archive is refused, with a reason that names the member.
    """
    start = archive.read(tarfile.BLOCKSIZE)
    archive.seek(0)
    output = Output(files, max_bytes)
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return unpack_zip(archive, output)
    if start.startswith(b"\x1f\x8b"):
        return unpack_tar(InflatedBytes(archive, max_bytes), output)
    if _is_tar_header(start):
        return unpack_tar(TarBytes(archive), output)
    found = next((f" but {meaning}" for magic, meaning in _OTHER_FORMATS.items() if start.startswith(magic)), "")
    raise AdapterRejected([f"the file is neither a tar, a tar.gz nor a zip archive{found}"])


def _is_tar_header(block: bytes) -> bool:
    """Tell a tar header by its magic number, or by its checksum: before POSIX there was no other sign."""
    if block[257:262] == b"ustar":
        return True
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.TarError:
        return False
    return True
