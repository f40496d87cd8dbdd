"""Unpacks zip archives within a bound on what is read into memory at once."""

from __future__ import annotations

import codecs
import os
import stat
import struct
import zipfile
import zlib
from typing import Any, BinaryIO

from adapters.archive.members import Members, refusal
from adapters.archive.output import FREE_BYTES, MAX_HEADERS_BYTES, MAX_RATIO, Output
from adapters.errors import AdapterRejected

# All errors that the library raises for damaged archives, and not for faults of ours or of the machine.
_ERRORS = (zipfile.BadZipFile, zlib.error, RuntimeError, ValueError, OverflowError, EOFError, struct.error)
_ENCRYPTED = 0x1

codecs.lookup("cp437")  # of names that are not UTF-8: once confined, no process could import it any more


class _Bounded:
    """A file that refuses to read more than MAX_HEADERS_BYTES at once.

    The zip library reads an archive's directory into memory as a whole.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._num_bytes = os.fstat(file.fileno()).st_size
        self.tell, self.seekable = file.tell, file.seekable

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_SET and not 0 <= offset <= self._num_bytes:
            raise zipfile.BadZipFile("an offset leads out of the file")
        return self._file.seek(offset, whence)

    def read(self, size: int = -1) -> bytes:
        chunk = self._file.read(size if 0 <= size <= MAX_HEADERS_BYTES else MAX_HEADERS_BYTES + 1)
        if len(chunk) > MAX_HEADERS_BYTES:
            raise AdapterRejected([f"the directory of the zip archive has more than {MAX_HEADERS_BYTES} bytes"])
        return chunk


def unpack_zip(file: BinaryIO, output: Output) -> list[str]:
    """Unpack a zip archive's files into `output`; return the names of the members that were ignored.

    Raises AdapterRejected: when the archive is damaged, lacks a file, takes too many bytes or holds a forbidden member.
    """
    members = Members()
    bounded: Any = _Bounded(file)
    try:
        with zipfile.ZipFile(bounded) as archive:
            for member in archive.infolist():
                output.check_size(member.orig_filename, member.file_size)
                _unpack_member(archive, member, members, output)
    except _ERRORS as error:
        raise AdapterRejected([f"the zip archive is damaged: {error}"]) from None
    members.check_complete()
    return members.ignored


def _unpack_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, members: Members, output: Output) -> None:
    name = member.orig_filename  # `filename` ends at the first NUL
    _check_kind(name, member)
    if name.endswith("/"):
        members.add_folder(name)
        return
    file_name = members.add_file(name)
    if file_name is not None:
        with archive.open(member) as content:
            output.copy(content, file_name, name, member.file_size)


def _check_kind(name: str, member: zipfile.ZipInfo) -> None:
    kind = stat.S_IFMT(member.external_attr >> 16)
    if stat.S_ISLNK(kind):
        raise refusal(name, "is a symbolic link, not a file")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise refusal(name, "is a device or a pipe, not a file")
    if member.flag_bits & _ENCRYPTED:
        raise refusal(name, "is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise refusal(name, "is compressed by another method than deflate")
    if member.file_size > max(FREE_BYTES, MAX_RATIO * member.compress_size):
        raise refusal(name, f"unpacks to more than {MAX_RATIO} times its size")
