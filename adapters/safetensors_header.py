"""The header of a safetensors file, read and checked in full before a single weight is touched.

Layout (https://huggingface.co/docs/safetensors): 8 bytes of little-endian header length, a JSON object of
{name: {dtype, shape, data_offsets}}, then the tensors' bytes, which must fill the rest of the file exactly: no overlap,
no gap. Knows nothing of LoRA; of the format's dtypes it takes the floating-point ones that adapters come in. Works on
an open file from first to last, so that nobody can put another one under its name in between.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from adapters.errors import AdapterRejected
from adapters.safe_file import read_json_object

MAX_HEADER_BYTES = 4 * 1024 * 1024
MAX_DIMENSIONS = 8
DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
CHUNK_BYTES = 4 * 1024 * 1024

# The beginnings of files that people send by mistake. A header of 640 bytes begins as a pickle does, so these are
# looked at in bad files only.
_OTHER_FORMATS = {
    b"\x80": "a pickle: only safetensors is read",
    b"PK\x03\x04": "a zip file, as torch.save writes it: only safetensors is read",
    b"GGUF": "a GGUF file: only safetensors is read",
    b"\x93NUMPY": "a NumPy file: only safetensors is read",
    b"\x89HDF": "an HDF5 file: only safetensors is read",
    b"version https://git-lfs": "Git LFS's pointer to the file and not the file itself",
}


class TensorInfo(msgspec.Struct, frozen=True):
    """A tensor of a file. Its bytes are [start, end) of the file, counted from byte 0."""

    name: str
    dtype: str
    """F32, F16 or BF16."""
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(file: BinaryIO, name: str) -> dict[str, TensorInfo]:
    """Return every tensor of a file by name, in the order of its bytes.

    name: the name of the file in errors.

    Raises AdapterRejected: when the header's length or JSON is wrong, a dtype is not one of adapters, a shape does not
    match its bytes, or bytes are outside the file, overlap or belong to no tensor; the error has all that is wrong.
    """
    file_bytes = os.fstat(file.fileno()).st_size
    file.seek(0)
    start = file.read(32)
    header_bytes = int.from_bytes(start[:8], "little")
    if file_bytes < 8 or 8 + header_bytes > file_bytes or header_bytes > MAX_HEADER_BYTES:
        raise AdapterRejected([f"{name} {_length_error(start, header_bytes, file_bytes)}"])
    file.seek(8)
    header = read_json_object(file.read(header_bytes), f"{name}'s header")
    reasons: list[str] = []
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        reasons.append(f"{name}: __metadata__ must map names to texts")
    tensors = []
    for tensor_name, entry in header.items():
        found = _read_entry(tensor_name, entry, 8 + header_bytes)
        if isinstance(found, TensorInfo):
            tensors.append(found)
        else:
            reasons.append(f"tensor {tensor_name[:200]!r}: {found}")
    if not reasons:
        tensors.sort(key=lambda tensor: (tensor.start, tensor.end))
        reasons = list(_layout_errors(tensors, 8 + header_bytes, file_bytes))
    if reasons:
        raise AdapterRejected(reasons)
    return {tensor.name: tensor for tensor in tensors}


def _length_error(start: bytes, header_bytes: int, file_bytes: int) -> str:
    for magic, meaning in _OTHER_FORMATS.items():
        if start.startswith(magic):
            return f"is {meaning}"
    if file_bytes < 8 or header_bytes <= MAX_HEADER_BYTES:
        return f"is cut short: {file_bytes} bytes do not hold its header"
    return f"has a header of {header_bytes} bytes, over {MAX_HEADER_BYTES}"


def _read_entry(name: str, entry: Any, data_start: int) -> TensorInfo | str:
    """Return the tensor that one header entry describes, or what is wrong with the entry.

    data_start: the place in the file at which the tensors' bytes begin.
    """
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        return "its entry must hold dtype, shape and data_offsets"
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        return f"dtype {str(dtype)[:20]!r} is not one of {', '.join(DTYPE_BYTES)}"
    if not _is_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        return f"shape must be a list of at most {MAX_DIMENSIONS} sizes"
    if not _is_sizes(offsets) or len(offsets) != 2:
        return "data_offsets must be two offsets"
    start, end = offsets
    num_bytes = math.prod(shape) * DTYPE_BYTES[dtype]
    if end - start != num_bytes:
        return f"{dtype} of shape {shape} takes {num_bytes} bytes, data_offsets give {end - start}"
    return TensorInfo(name, dtype, tuple(shape), data_start + start, data_start + end)


def _is_sizes(value: Any) -> bool:
    # bool is a subclass of int in Python, and 2^53 is where JSON readers begin to disagree.
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 2**53 for size in value)


def _layout_errors(tensors: list[TensorInfo], data_start: int, file_bytes: int) -> Iterator[str]:
    """Yield the faults that keep the tensors, in the order of their bytes, from tiling [data_start, file_bytes)."""
    position = data_start
    for tensor in tensors:
        if tensor.end > file_bytes:
            yield f"tensor {tensor.name[:200]!r} ends at byte {tensor.end} of a file of {file_bytes}"
        elif tensor.start < position:
            yield f"tensor {tensor.name[:200]!r} overlaps the one before it"
        elif tensor.start > position:
            yield f"{tensor.start - position} bytes before tensor {tensor.name[:200]!r} belong to no tensor"
        position = max(position, tensor.end)
    if position < file_bytes:
        yield f"the last {file_bytes - position} bytes belong to no tensor"


def iter_tensor_bytes(file: BinaryIO, tensor: TensorInfo) -> Iterator[bytes]:
    """Yield the tensor's bytes, in chunks that hold whole elements.

    Raises AdapterRejected: when the file has become shorter.
    """
    for position in range(tensor.start, tensor.end, CHUNK_BYTES):
        num_bytes = min(CHUNK_BYTES, tensor.end - position)
        file.seek(position)
        chunk = file.read(num_bytes)
        if len(chunk) < num_bytes:
            raise AdapterRejected([f"tensor {tensor.name!r}: the file became shorter while it was read"])
        yield chunk
