"""The header of a safetensors file, read and checked in full before a single weight is touched.

Layout (https://huggingface.co/docs/safetensors): 8 bytes of little-endian header length, a JSON object of
{name: {dtype, shape, data_offsets}}, then the tensors' bytes, which must fill the rest of the file exactly: no overlap,
no gap. Knows nothing of LoRA; of the format's dtypes it takes the floating-point ones that adapters come in.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from adapters.errors import AdapterRejected
from adapters.safe_file import open_regular, read_json_object

MAX_HEADER_BYTES = 4 * 1024 * 1024
MAX_DIMENSIONS = 8
DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
CHUNK_BYTES = 4 * 1024 * 1024


class TensorInfo(msgspec.Struct, frozen=True):
    """One tensor of a file. dtype: F32, F16 or BF16; its bytes are [start, end) of the file, counted from byte 0."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Every tensor of the file by name, in the order of its bytes.

    Raises AdapterRejected with all that is wrong: the header's length or JSON, a dtype that adapters don't use, a shape
    that doesn't match its bytes, bytes outside the file, overlapping or used by no tensor.
    """
    with open_regular(path) as file:
        file_bytes = os.fstat(file.fileno()).st_size
        header_bytes = int.from_bytes(file.read(8), "little")
        if file_bytes < 8 or 8 + header_bytes > file_bytes:
            raise AdapterRejected([f"{path.name} is cut short: {file_bytes} bytes do not hold its header"])
        if header_bytes > MAX_HEADER_BYTES:
            raise AdapterRejected([f"{path.name}: a header of {header_bytes} bytes is over {MAX_HEADER_BYTES}"])
        header = read_json_object(file.read(header_bytes), f"{path.name}'s header")
    header.pop("__metadata__", None)
    reasons: list[str] = []
    tensors = []
    for name, entry in header.items():
        found = _read_entry(name, entry, 8 + header_bytes)
        if isinstance(found, TensorInfo):
            tensors.append(found)
        else:
            reasons.append(f"tensor {name[:200]!r}: {found}")
    if not reasons:
        tensors.sort(key=lambda tensor: (tensor.start, tensor.end))
        reasons = list(_layout_errors(tensors, 8 + header_bytes, file_bytes))
    if reasons:
        raise AdapterRejected(reasons)
    return {tensor.name: tensor for tensor in tensors}


def _read_entry(name: str, entry: Any, data_start: int) -> TensorInfo | str:
    """The tensor that one header entry describes, or what is wrong with the entry."""
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
    """tensors in the order of their bytes must tile [data_start, file_bytes)."""
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


def iter_tensor_bytes(path: Path, tensor: TensorInfo) -> Iterator[bytes]:
    """The tensor's bytes, in chunks that hold whole elements."""
    with open_regular(path) as file:
        file.seek(tensor.start)
        for position in range(tensor.start, tensor.end, CHUNK_BYTES):
            yield file.read(min(CHUNK_BYTES, tensor.end - position))
