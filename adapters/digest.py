"""The identity of an adapter's content: two folders with equal modules and weights share it.

Modules are equal if their ranks and scalings are, weights if their shapes, dtypes and bytes are.
Metadata, padding, the order of tensors in the file and options of training don't count.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from adapters.peft_format import AdapterModule, check_finite, describe, open_files, tensor_norm
from adapters.safetensors_header import iter_tensor_bytes

FORMAT = "lora-adapter-1"


class ContentDigest:
    """The SHA-256 of an adapter's modules and tensors.

    Each module gives its layer, projection, rank and scaling, each tensor its dtype, shape and bytes. Modules are
    sorted by layer and projection, and lora_A comes before lora_B.

    Every variable-length part is preceded by its length or is canonical JSON on a line of its own, so that no two
    contents give one input. The caller that reads the bytes passes them on, so that the digest is of the very bytes
    that were read.
    """

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256(f"{FORMAT}\n".encode())

    def begin(self, module: AdapterModule) -> None:
        """Begin the next module, in the order of `AdapterFile.modules`.

        `update` follows with all of the module's lora_A, then its lora_B.
        """
        tensors = (module.a, module.b)
        head = [module.layer, module.projection, module.rank, module.scaling]
        head += [[tensor.dtype, tensor.shape, tensor.end - tensor.start] for tensor in tensors]
        self._sha256.update(json.dumps(head, separators=(",", ":")).encode() + b"\n")

    def update(self, chunk: bytes | memoryview) -> None:
        """Hash the next bytes of the tensors of the module that has been begun."""
        self._sha256.update(chunk)

    def hexdigest(self) -> str:
        """Return the digest as 64 hex digits."""
        return self._sha256.hexdigest()


def canonical_digest(folder: Path) -> str:
    """Return the digest of an adapter's folder.

    Raises AdapterRejected: when the adapter is one that `read_adapter` refuses.
    """
    digest = ContentDigest()
    with open_files(folder) as (config, weights):
        for module in describe(config, weights).modules:
            digest.begin(module)
            for tensor in (module.a, module.b):
                check_finite({tensor.name: tensor_norm(weights, tensor)})
                for chunk in iter_tensor_bytes(weights, tensor):
                    digest.update(chunk)
    return digest.hexdigest()
