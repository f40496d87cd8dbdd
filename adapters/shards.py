"""Safetensors files written tensor by tensor: the header first, then each tensor as it comes, none kept.

Layout: https://huggingface.co/docs/safetensors. Knows nothing of models or adapters.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import torch
from torch import Tensor

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
ALIGNMENT_BYTES = 8


class Entry(msgspec.Struct, frozen=True):
    """A tensor to write."""

    name: str
    dtype: str
    """A key of DTYPES."""
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """The bytes of the tensor's numbers, without its entry in the header."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


def write_shard(path: Path, entries: Iterable[Entry], tensors: Iterable[Tensor], metadata: Mapping[str, str]) -> int:
    """Write a new, durable file of these entries; return the number of bytes of all tensors.

    tensors: the tensors of the entries, in the same order.
    """
    entries = list(entries)
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for entry in entries:
        end = position + entry.num_bytes
        header[entry.name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": (position, end)}
        position = end
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % ALIGNMENT_BYTES)
    with path.open("xb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for entry, tensor in zip(entries, tensors, strict=True):
            assert (tensor.dtype, tuple(tensor.shape)) == (DTYPES[entry.dtype], entry.shape)
            file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
    return position
