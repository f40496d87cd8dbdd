"""Unpacks tar archives, plain or gzipped, in one pass and within bounds that hold before anything is read."""

from __future__ import annotations

import struct
import tarfile
import zlib
from typing import Any, BinaryIO

from adapters.archive.members import Members, refusal
from adapters.archive.output import COPY_BYTES, FREE_BYTES, MAX_HEADERS_BYTES, MAX_RATIO, Output
from adapters.errors import AdapterRejected

# Bytes that tar adds to the files: headers and padding of all members, and to the archive's end.
OVERHEAD_BYTES = 4 * 1024 * 1024

# All errors that the library raises for damaged archives, and not for faults of ours or of the machine.
_ERRORS = (tarfile.TarError, ValueError, OverflowError, RecursionError, EOFError, IndexError, struct.error)
_KINDS = {
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.LNKTYPE: "a hard link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
}


class TarBytes:
    """A reader of a tar file's bytes that refuses to read beyond byte `until`.

    An extended header may have any length and is read into memory as a whole, so `until` is set before each is read.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._position = 0
        self.until = COPY_BYTES + MAX_HEADERS_BYTES

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most `size`. Raises AdapterRejected: when they go beyond byte `until`."""
        chunk = self._next(size)
        self._position += len(chunk)
        if self._position > self.until:
            raise AdapterRejected([f"more than {MAX_HEADERS_BYTES} bytes of headers or padding lie in one place"])
        return chunk

    def _next(self, size: int) -> bytes:
        return self._file.read(size)


class InflatedBytes(TarBytes):
    """A reader of the tar file in a gzip file (RFC 1952), which inflates as far as it is read.

    max_bytes: the most bytes of the files in the archive together.
    """

    def __init__(self, file: BinaryIO, max_bytes: int) -> None:
        super().__init__(file)
        self._max_bytes = max_bytes + OVERHEAD_BYTES
        self._inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # gzip's header and checksum
        self._packed_bytes = 0
        self._num_bytes = 0

    def _next(self, size: int) -> bytes:
        chunk = b""
        while not chunk and not self._inflate.eof:
            packed = self._inflate.unconsumed_tail or self._file.read(COPY_BYTES)
            if not packed:
                raise AdapterRejected(["the gzip data are cut short"])
            try:
                chunk = self._inflate.decompress(packed, size)
            except zlib.error as error:
                raise AdapterRejected([f"the gzip data are damaged: {error}"]) from None
            self._packed_bytes += len(packed) - len(self._inflate.unconsumed_tail)
        if self._inflate.eof and (self._inflate.unused_data or self._file.read(1)):
            raise AdapterRejected(["bytes follow the gzip data"])
        self._num_bytes += len(chunk)
        self._check_bounds()
        return chunk

    def _check_bounds(self) -> None:
        if self._num_bytes > self._max_bytes:
            raise AdapterRejected([f"the archive has more than {self._max_bytes} bytes when unpacked"])
        if self._num_bytes > max(FREE_BYTES, MAX_RATIO * self._packed_bytes):
            raise AdapterRejected([f"the archive unpacks to more than {MAX_RATIO} times its size"])


def unpack_tar(source: TarBytes, output: Output) -> list[str]:
    """Unpack a tar archive's files into `output`; return the names of the members that were ignored.

    Raises AdapterRejected: when the archive is damaged, lacks a file, takes too many bytes or holds a forbidden member.
    """
    members = Members()
    # As a stream, since to seek in gzip data is to inflate them again.
    stream: Any = source
    try:
        with tarfile.open(fileobj=stream, mode="r|", bufsize=COPY_BYTES, errorlevel=2) as archive:
            while (member := archive.next()) is not None:
                output.check_size(member.name, member.size)
                source.until = member.offset_data + member.size + COPY_BYTES + MAX_HEADERS_BYTES
                _unpack_member(archive, member, members, output)
            _check_end(archive)
    except _ERRORS as error:
        raise AdapterRejected([f"the tar archive is damaged: {error}"]) from None
    members.check_complete()
    return members.ignored


def _unpack_member(archive: tarfile.TarFile, member: tarfile.TarInfo, members: Members, output: Output) -> None:
    if member.isdir():
        members.add_folder(member.name)
        return
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
        raise refusal(member.name, f"is {_KINDS.get(member.type, 'of a kind that is not supported')}, not a file")
    file_name = members.add_file(member.name)
    if file_name is not None:
        content = archive.extractfile(member)
        assert content is not None, "a regular file has content"
        output.copy(content, file_name, member.name, member.size)


def _check_end(archive: tarfile.TarFile) -> None:
    """Check that nothing but zeros follows the last member: the library takes a damaged header for the end, too.

    Raises AdapterRejected: when other bytes follow.
    """
    stream = archive.fileobj
    assert stream is not None
    while rest := stream.read(COPY_BYTES):
        if any(rest):
            raise AdapterRejected(["bytes follow the end of the tar archive, or a header in it is damaged"])
