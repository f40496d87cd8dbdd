"""The identity of an adapter's content: two folders share it if they compute the same thing from the same bytes.

Metadata, padding, the order of tensors in the file and options of training don't count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

from adapters.peft_format import WEIGHTS_NAME, AdapterFile, read_adapter
from adapters.safetensors_header import TensorInfo, iter_tensor_bytes

FORMAT = "lora-adapter-1"


def canonical_digest(folder: Path) -> str:
    """The digest of an adapter's folder. Raises AdapterRejected."""
    return content_digest(read_adapter(folder), lambda tensor: iter_tensor_bytes(folder / WEIGHTS_NAME, tensor))


def content_digest(adapter: AdapterFile, bytes_of: Callable[[TensorInfo], Iterable[bytes | memoryview]]) -> str:
    """SHA-256, as 64 hex digits, over each module (layer, projection, rank, scaling) and its tensors (dtype, shape,
    bytes), modules sorted by layer and projection and lora_A before lora_B.

    Every variable-length part is preceded by its length or is canonical JSON on a line of its own, so that no two
    contents give one input. bytes_of: a tensor's bytes, in one or more parts.
    """
    digest = hashlib.sha256(f"{FORMAT}\n".encode())
    for module in adapter.modules:
        tensors = (module.a, module.b)
        head = [module.layer, module.projection, module.rank, module.scaling]
        head += [[tensor.dtype, tensor.shape, tensor.end - tensor.start] for tensor in tensors]
        digest.update(json.dumps(head, separators=(",", ":")).encode() + b"\n")
        for tensor in tensors:
            for part in bytes_of(tensor):
                digest.update(part)  # leaves the interpreter to others meanwhile
    return digest.hexdigest()
