"""Quantized matrices in a file beside the model, so that a later start reads them instead of quantizing.

Layout: the memory of all matrices, one after the other; a table of them, as JSON; the length of the table in 8 bytes,
and its SHA-256. The table has a SHA-256 of each matrix, and says what the matrices were made of. A file that does not
fit is made anew, and so is a damaged one. A folder has one such file: that of the format which was asked for last.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import shutil
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import msgspec
import torch

from engine.config import model_digest
from kernels.cpu.library import NativeLibrary
from kernels.cpu.matrix import LAYOUT, NativeMatrix

log = logging.getLogger(__name__)

SUFFIX = ".matrices"
MOST_TABLE_BYTES = 64 << 20
DIGEST_BYTES = 32
FREE_SHARE = 2
"""A file is made only if the disk has room for this many files of its size."""


class DamagedFile(Exception):
    """The error for a file whose content is not what was written; the message says where."""


class _Entry(msgspec.Struct, frozen=True):
    """One matrix of the file."""

    num_inputs: int
    parts: list[tuple[int, int, int]]
    """The kind, the number of outputs and the bytes of each part."""
    offset: int
    """The place of the first part in the file, in bytes; the other parts follow."""
    digest: str
    """The digest of the parts' bytes."""


class _Table(msgspec.Struct, frozen=True):
    """The table of the file's matrices."""

    made_of: str
    """The text that tells the model and the format from others (`origin_of`)."""
    matrices: dict[str, _Entry]
    """The matrices by name."""


def matrices_file(model_dir: str | Path, kind: str) -> Path:
    """Return the file that keeps a model's matrices in a format."""
    return Path(model_dir) / f"lorikeet-{kind}{SUFFIX}"


def origin_of(model_dir: str | Path, wording: str, dtype: torch.dtype) -> str:
    """Return the text that names the weights, the format and the layout that matrices were made of.

    The time of a file's last change is in it, since the digest of a model does not depend on all bytes of the weights.
    dtype: the dtype of the weights before they were quantized.
    """
    files = sorted(Path(model_dir).glob("*.safetensors")) or sorted(Path(model_dir).glob("*.gguf"))
    times = " ".join(str(path.stat().st_mtime_ns) for path in files)
    return f"{model_digest(model_dir)}; {times}; {wording}; of {dtype}; layout {LAYOUT}"


class KeptMatrices:
    """The matrices of a file, read one by one. Use as a context."""

    def __init__(self, path: Path, library: NativeLibrary, wanted: str) -> None:
        """Open a file. wanted: what the matrices must have been made of (`origin_of`).

        Raises DamagedFile: when the file is cut off or another one than was written.
        Raises FileNotFoundError: when there is no such file, or its matrices were made of something else.
        """
        self._file: BufferedReader = path.open("rb")
        self._library = library
        try:
            table = self._table(os.fstat(self._file.fileno()).st_size)
            if table.made_of != wanted:
                raise FileNotFoundError(f"{path} has other matrices")
        except BaseException:
            self._file.close()
            raise
        self._matrices = table.matrices

    def __enter__(self) -> KeptMatrices:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def matrix(self, names: Sequence[str]) -> NativeMatrix:
        """Return the quantized matrix in which the model's matrices of these names are joined.

        Raises DamagedFile: when its memory is another one than was written.
        """
        key = " ".join(names)
        entry = self._matrices.get(key)
        if entry is None:
            raise DamagedFile(f"{key} is not there")
        try:
            made = NativeMatrix.empty(self._library, [part[:2] for part in entry.parts], entry.num_inputs)
        except ValueError as error:
            raise DamagedFile(f"{key}: {error}") from None
        digest = hashlib.sha256()
        self._file.seek(entry.offset)
        for part, (_, _, num_bytes) in zip(made.parts(), entry.parts, strict=True):
            if len(part.memory) != num_bytes or self._file.readinto(part.memory) != num_bytes:
                raise DamagedFile(f"{key} has another size")
            digest.update(part.memory)
        if digest.hexdigest() != entry.digest:
            raise DamagedFile(f"{key} has other bytes")
        return made

    def _table(self, size: int) -> _Table:
        trailer = 8 + DIGEST_BYTES
        if size < trailer:
            raise DamagedFile("it is cut off")
        self._file.seek(size - trailer)
        length, digest = int.from_bytes(self._file.read(8), "little"), self._file.read(DIGEST_BYTES)
        if length > min(MOST_TABLE_BYTES, size - trailer):
            raise DamagedFile("it is cut off")
        self._file.seek(size - trailer - length)
        raw = self._file.read(length)
        if hashlib.sha256(raw).digest() != digest:
            raise DamagedFile("its table has other bytes")
        try:
            return msgspec.json.decode(raw, type=_Table)
        except msgspec.DecodeError as error:
            raise DamagedFile(str(error)) from None


class MatricesWriter:
    """Writes matrices to a file as they are made. If a write fails, nothing is kept, and the log has one line."""

    def __init__(self, path: Path, origin: str, num_bytes: int) -> None:
        """Begin a file beside `path`, which is locked while it is written.

        origin: what the matrices are made of (`origin_of`). num_bytes: the bytes of all matrices together.
        """
        self._path = path
        self._made_of = origin
        self._entries: dict[str, _Entry] = {}
        self._offset = 0
        self._beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        self._file: BinaryIO | None = None
        try:
            self._check_free(num_bytes)
            self._file = self._beside.open("xb")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._give_up(error)

    def add(self, names: Sequence[str], matrix: NativeMatrix) -> None:
        """Write a quantized matrix to the file. names: the names of the model's matrices that are joined in it."""
        if self._file is None or (key := " ".join(names)) in self._entries:
            return
        digest, parts, first = hashlib.sha256(), [], self._offset
        try:
            for part in matrix.parts():
                self._check_free(len(part.memory))
                self._file.write(part.memory)
                digest.update(part.memory)
                parts.append((part.kind, part.num_outputs, len(part.memory)))
                self._offset += len(part.memory)
        except OSError as error:
            self._give_up(error)
            return
        self._entries[key] = _Entry(matrix.shape[1], parts, first, digest.hexdigest())

    def finish(self) -> None:
        """Put the file in its place, and remove those of other formats."""
        if self._file is None:
            return
        raw = msgspec.json.encode(_Table(self._made_of, self._entries))
        try:
            self._file.write(raw + len(raw).to_bytes(8, "little") + hashlib.sha256(raw).digest())
            self._file.flush()
            os.fsync(self._file.fileno())
            self._beside.replace(self._path)
        except OSError as error:
            self._give_up(error)
            return
        # Closed only now: a file that can be locked while it has its first name is taken for an interrupted one.
        file, self._file = self._file, None
        with contextlib.suppress(OSError):
            file.close()
        for other in self._path.parent.glob(f"lorikeet-*{SUFFIX}"):
            if other != self._path:
                with contextlib.suppress(OSError):
                    other.unlink()
        log.info("kept the quantized matrices in %s (%.0f MB)", self._path, self._offset / 1e6)

    def abandon(self) -> None:
        """Remove the file that was written, unless it is in its place already."""
        file, self._file = self._file, None
        if file is None:
            return
        with contextlib.suppress(OSError):
            file.close()  # writes what is left, which a full disk refuses again
        with contextlib.suppress(OSError):
            self._beside.unlink()

    def _check_free(self, num_bytes: int) -> None:
        free = shutil.disk_usage(self._path.parent).free
        if free < FREE_SHARE * num_bytes:
            raise OSError(f"the disk has {free / 1e6:.0f} MB left, and {num_bytes / 1e6:.0f} MB are to be written")

    def _give_up(self, error: OSError) -> None:
        log.warning("the next start quantizes again: %s", error)
        self.abandon()


def remove_interrupted(folder: Path) -> None:
    """Remove the unfinished files of starts that ended early, as far as possible.

    A file that another start writes is locked, and stays.
    """
    for path in folder.glob(f".lorikeet-*{SUFFIX}.*"):
        with contextlib.suppress(OSError), path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
