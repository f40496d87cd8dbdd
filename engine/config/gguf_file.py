"""The tensors of a GGUF file: where they lie, in which blocks, and what Hugging Face's checkpoints call them.

Reads the file's head alone, by https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Knows nothing of numbers.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

FILE_NAME = "model.gguf"
"""The name of the GGUF file in the folder of a prepared model whose weights are not in files of safetensors."""

BLOCKS = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 30: ("BF16", 1, 2),
}  # fmt: skip
"""The name of each format, and the numbers and bytes of its blocks, by the format's number."""

COMPUTED = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")
"""Formats whose blocks the kernels for CPUs multiply by; matrices in others are rounded to 8-bit integers."""

ARCHITECTURES = {"llama": True, "qwen2": False, "qwen3": False}
"""Architectures whose files are served as they are, and whether rows of queries and keys have another order in them."""

ROTATION_FACTORS = "rope_freqs.weight"
"""The name of the tensor of factors by which long wavelengths of the rotation are stretched, as Llama 3.1 has them."""

SIZES = ("context_length", "block_count", "embedding_length", "feed_forward_length", "attention.head_count")
"""The keys, after that of the architecture, that say how large a file's model is."""

SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
"""The names of the tensors of LongRoPE's factors, as Phi-3 has them."""

Found = TypeVar("Found")

_VALUE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY, _UINT32 = 8, 9, 4
_MOST_DIMENSIONS = 4
_ALIGNMENT = 32
_SCALED = "rope.scaling."
_ROTATION = re.compile(r"[\w-]+\.(rope\.[\w.]+)")
_NUMBERS = {4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_MAGIC = int.from_bytes(b"GGUF", "little")

_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_OF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class NotGguf(ValueError):
    """The error for a file that is no readable GGUF file; the message has the reason."""


class GgufTensor(msgspec.Struct, frozen=True):
    """One tensor of a file."""

    format: str
    """The name of the format, such as `Q4_K`."""
    shape: tuple[int, ...]
    """The sizes in the order of Hugging Face's checkpoints, inputs last."""
    offset: int
    """The place of the tensor, in bytes from the file's beginning."""
    row_bytes: int
    """The bytes of one row of inputs."""

    @property
    def num_bytes(self) -> int:
        """The bytes of the tensor in the file."""
        return self.row_bytes * (self.shape[0] if len(self.shape) > 1 else 1)


class GgufFile(msgspec.Struct, frozen=True):
    """The head of a file."""

    architecture: str
    tensors: dict[str, GgufTensor]
    """Tensors by their names in Hugging Face's checkpoints."""
    unknown_names: tuple[str, ...]
    """Names of tensors that have no name in Hugging Face's checkpoints."""
    rotation_keys: dict[str, float | str]
    """The keys of the rotation without the architecture before them, such as `rope.scaling.factor`."""
    rotation_tensors: dict[str, GgufTensor]
    """The tensors of factors of the rotation, by their names in the file."""

    @property
    def scales_rotation(self) -> bool:
        """Tell whether positions are rotated by scaled angles, by keys or by a tensor of the file."""
        return bool(self.rotation_tensors) or any(key.startswith(_SCALED) for key in self.rotation_keys)

    @property
    def computed_share(self) -> float:
        """The share of the matrices' numbers that are in formats of `COMPUTED`."""
        sizes = [(each.format, math.prod(each.shape)) for each in self.tensors.values() if len(each.shape) > 1]
        return sum(size for kind, size in sizes if kind in COMPUTED) / (sum(size for _, size in sizes) or 1)

    @property
    def permutes(self) -> bool:
        """Tell whether rows of queries and keys lie in the order of neighbouring pairs that are rotated together."""
        return ARCHITECTURES.get(self.architecture, False)


def gguf_of(folder: str | Path) -> Path | None:
    """Return the GGUF file that holds the weights of a prepared model; None where files of safetensors do."""
    path = Path(folder) / FILE_NAME
    return path if path.is_file() and not any(Path(folder).glob("*.safetensors")) else None


def hugging_face_name(name: str) -> str | None:
    """Return the name that a tensor of a GGUF file has in Hugging Face's checkpoints; None where it has none."""
    if name in _WHOLE:
        return _WHOLE[name]
    found = _LAYER_NAME.fullmatch(name)
    if found is None or found[2] not in _OF_LAYER:
        return None
    return f"model.layers.{found[1]}.{_OF_LAYER[found[2]]}.{found[3]}"


def gguf_name(name: str) -> str:
    """Return the name in a GGUF file of a tensor that has one. name: the name in Hugging Face's checkpoints."""
    for ours, theirs in _WHOLE.items():
        if theirs == name:
            return ours
    _, _, layer, middle = name.split(".", 3)
    middle, end = middle.rsplit(".", 1)
    return f"blk.{layer}.{next(ours for ours, theirs in _OF_LAYER.items() if theirs == middle)}.{end}"


def read_gguf(path: Path) -> GgufFile:
    """Return the head of a file.

    Raises NotGguf: when the file is not a GGUF file, is cut off, or has a format that is not known.
    Raises OSError: when the file cannot be opened.
    """
    return _read(path, _Head.read)


def missing_sizes(path: Path) -> list[str]:
    """Return the keys of `SIZES` that a file lacks, with its architecture before them. No tensor is looked at.

    Raises NotGguf: when the file is not a GGUF file, or is cut off.
    Raises OSError: when the file cannot be opened.
    """
    return _read(path, _Head.read_missing_sizes)


def _read(path: Path, read: Callable[[_Head], Found]) -> Found:
    with path.open("rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return read(_Head(content))
        except (struct.error, UnicodeDecodeError, ValueError, OverflowError, KeyError) as error:
            raise NotGguf(f"{path} is no GGUF file that can be read: {error}") from None


class _Head:
    """Reads a file's head from its beginning."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self._place = 0

    def read_missing_sizes(self) -> list[str]:
        _, num_values = self._counts()
        architecture, keys = "", set[str]()
        for _ in range(num_values):
            key, (kind,) = self._string(), self._unpack("<I")
            if key == "general.architecture" and kind == _STRING:
                architecture = self._string()
            else:
                self._skip_value(kind)
                keys.add(key)
        return [key for size in SIZES if (key := f"{architecture}.{size}") not in keys]

    def read(self) -> GgufFile:
        num_tensors, num_values = self._counts()
        architecture, alignment = "", _ALIGNMENT
        rotation_keys: dict[str, float | str] = {}
        for _ in range(num_values):
            key, (kind,) = self._string(), self._unpack("<I")
            if key == "general.architecture" and kind == _STRING:
                architecture = self._string()
            elif key == "general.alignment" and kind == _UINT32:
                (alignment,) = self._unpack("<I")
            elif (found := _ROTATION.fullmatch(key)) and kind == _STRING:
                rotation_keys[found[1]] = self._string()
            elif found and kind in _NUMBERS:
                (rotation_keys[found[1]],) = self._unpack(_NUMBERS[kind])
            else:
                self._skip_value(kind)
        tensors, rotation_tensors, others = {}, {}, []
        placed_tensors = [self._tensor() for _ in range(num_tensors)]
        if not alignment or alignment % 8:
            raise ValueError(f"its alignment is {alignment}")
        first = self._place + -self._place % alignment
        for name, tensor in placed_tensors:
            placed = msgspec.structs.replace(tensor, offset=first + tensor.offset)
            if placed.offset + placed.num_bytes > len(self._content):
                raise ValueError(f"it ends before {name} does")
            known = hugging_face_name(name)
            if name in (ROTATION_FACTORS, SHORT_FACTORS, LONG_FACTORS):
                rotation_tensors[name] = placed
            elif known is None:
                others.append(name)
            else:
                tensors[known] = placed
        return GgufFile(architecture, tensors, tuple(others), rotation_keys, rotation_tensors)

    def _counts(self) -> tuple[int, int]:
        """Return the numbers of tensors and of keys, which the file begins with."""
        magic, version, num_tensors, num_values = self._unpack("<IIQQ")
        if magic != _MAGIC or version not in (2, 3):
            raise ValueError("it does not begin as one of version 2 or 3")
        return num_tensors, num_values

    def _tensor(self) -> tuple[str, GgufTensor]:
        name, (num_dimensions,) = self._string(), self._unpack("<I")
        if not 1 <= num_dimensions <= _MOST_DIMENSIONS:
            raise ValueError(f"{name} has {num_dimensions} dimensions")
        dimensions = self._unpack(f"<{num_dimensions}Q")
        number, offset = self._unpack("<IQ")
        if number not in BLOCKS:
            raise ValueError(f"{name} has format {number}, which is not known")
        kind, size, num_bytes = BLOCKS[number]
        if dimensions[0] % size or min(dimensions) < 1 or max(dimensions) > 1 << 40:
            raise ValueError(f"{name} of {list(dimensions)} is no number of whole blocks of {kind}")
        shape = tuple(int(each) for each in reversed(dimensions))
        return name, GgufTensor(kind, shape, offset, dimensions[0] // size * num_bytes)

    def _unpack(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from(form, self._content, self._place)
        self._place += struct.calcsize(form)
        return found

    def _string(self) -> str:
        (length,) = self._unpack("<Q")
        self._forward(length)
        return self._content[self._place - length : self._place].decode()

    def _forward(self, num_bytes: int) -> None:
        if num_bytes > len(self._content) - self._place:
            raise ValueError("it is cut off")
        self._place += num_bytes

    def _skip_value(self, kind: int) -> None:
        if kind == _STRING:
            (length,) = self._unpack("<Q")
            self._forward(length)
        elif kind == _ARRAY:
            item, count = self._unpack("<IQ")
            if item in _VALUE_BYTES:
                self._forward(_VALUE_BYTES[item] * count)
            elif item == _STRING:
                for _ in range(count):
                    self._skip_value(item)
            else:
                raise ValueError("it has an array of arrays")
        else:
            self._forward(_VALUE_BYTES[kind])
