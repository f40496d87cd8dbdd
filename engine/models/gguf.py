"""The weights of a GGUF file, as blocks that the native kernels multiply or as tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.config import ModelConfig, UnsupportedModel
from engine.config.gguf_file import GgufTensor, NotGguf, read_gguf


class GgufWeights:
    """Tensors by their names in Hugging Face's checkpoints, read anew at every use."""

    def __init__(self, path: Path, config: ModelConfig) -> None:
        """Open a file.

        Raises UnsupportedModel: when the file cannot be read.
        """
        try:
            self._head = read_gguf(path)
        except (NotGguf, OSError) as error:
            raise UnsupportedModel(str(error)) from None
        self._path = path
        self._heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}

    def keys(self) -> Iterator[str]:
        """Return the names of all tensors."""
        return iter(self._head.tensors)

    def format_of(self, name: str) -> str:
        """Return the name of the format of a tensor's blocks; "" if there is no such tensor."""
        found = self._head.tensors.get(name)
        return "" if found is None else found.format

    def blocks(self, name: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Return the rows of a matrix's blocks [out, bytes], in the order of Hugging Face's checkpoints.

        Raises UnsupportedModel: when the matrix is missing or has another shape.
        """
        found = self._head.tensors.get(name)
        if found is None:
            raise UnsupportedModel(f"the checkpoint lacks {name}")
        if found.shape != shape:
            raise UnsupportedModel(f"{name} is {list(found.shape)}, the config asks for {list(shape)}")
        return self._in_order(name, found)

    def get_tensor(self, name: str) -> Tensor:
        """Return a tensor's numbers in float32, or bfloat16 or float16 where the file has those.

        Raises UnsupportedModel: when no model has a tensor of its shape.
        """
        found = self._head.tensors[name]
        rows = self._in_order(name, found)
        if found.format in ("F32", "F16"):
            numbers = rows.view(np.float32 if found.format == "F32" else np.float16)
            tensor = torch.from_numpy(np.array(numbers))
        elif found.format == "BF16":
            tensor = torch.from_numpy(np.array(rows.view(np.int16))).view(torch.bfloat16)
        else:
            from gguf import GGMLQuantizationType
            from gguf.quants import dequantize

            tensor = torch.from_numpy(dequantize(np.array(rows), GGMLQuantizationType[found.format]))
        return tensor.reshape(found.shape)

    def get_slice(self, name: str) -> Tensor:
        """Return a tensor's numbers, of which parts may be taken."""
        return self.get_tensor(name)

    def _stored_rows(self, tensor: GgufTensor) -> NDArray[np.uint8]:
        # Read rather than mapped: pages of a mapped file would count as memory of the process.
        memory = np.fromfile(self._path, dtype=np.uint8, count=tensor.num_bytes, offset=tensor.offset)
        return memory.reshape(-1, tensor.row_bytes)

    def _in_order(self, name: str, tensor: GgufTensor) -> NDArray[np.uint8]:
        """Return a tensor's rows in the order of Hugging Face's checkpoints.

        Queries and keys may lie in the order in which llama.cpp rotates them.
        """
        shape = tensor.shape
        if 0 in shape or len(shape) > 2:
            raise UnsupportedModel(f"{name} is {list(shape)}, which is neither a matrix nor a bias")
        heads = self._heads.get(name.rsplit(".", 2)[-2]) if self._head.permutes else None
        if heads is None:
            return self._stored_rows(tensor)
        # A bias is one row, whose numbers are what lies in that order.
        if shape[0] % (2 * heads) or (len(shape) == 1 and tensor.row_bytes % shape[0]):
            raise UnsupportedModel(f"{name} is {list(shape)} in {tensor.format}, not pairs for each of {heads} heads")
        rows = self._stored_rows(tensor)
        flat = rows.reshape(shape[0], -1)
        turned = flat.reshape(heads, -1, 2, flat.shape[-1]).swapaxes(1, 2).reshape(flat.shape)
        return turned.reshape(rows.shape)
