"""Writes an adapter as a GGUF file for llama.cpp, named by the digest of the adapter's content.

y += (alpha / rank) * (x @ a.T) @ b.T is what llama.cpp computes; alpha is 1 for the whole file here, and each module's
own scaling and rank are in its b. Knows nothing of servers.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray

from adapters.digest import canonical_digest
from adapters.errors import AdapterRejected
from adapters.peft_format import AdapterFile, AdapterModule, open_files, read_adapter
from adapters.safetensors_header import TensorInfo, iter_tensor_bytes
from adapters.values import as_float32

CONFIG_NAME = "config.json"

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""llama.cpp's name of each architecture, by the `model_type` of its configuration."""

PERMUTED = frozenset({"llama"})
"""Architectures for which llama.cpp interleaves the rotary halves of a head, so that rows of q and k are reordered."""

_NAMES = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}


class NotConvertible(Exception):
    """The error for a base model for which no adapter can be written; the message has the reason."""


class WrittenGguf(msgspec.Struct, frozen=True):
    """The result of `write_gguf`: the file, and what it holds."""

    path: Path
    num_modules: int
    num_bytes: int


def write_gguf(base: Path, adapter: Path, folder: Path) -> WrittenGguf:
    """Write an adapter of PEFT's as `folder/<digest>.gguf`, which appears when it is whole.

    base: the folder of its base model, of which the configuration alone is read.

    Raises AdapterRejected: when the adapter cannot be read.
    Raises NotConvertible: when llama.cpp has no such base model, or the configuration cannot be read.
    """
    config = _read_config(base)
    architecture = ARCHITECTURES.get(config.get("model_type", ""))
    if architecture is None:
        raise NotConvertible(f"{base}: adapters of '{config.get('model_type')}' cannot be written for llama.cpp")
    found, digest = read_adapter(adapter), canonical_digest(adapter)
    others = sorted({module.projection for module in found.modules} - _NAMES.keys())
    if others:
        raise AdapterRejected([f"llama.cpp has no place for an adapter of {name}" for name in others])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{digest}.gguf"
    with tempfile.TemporaryDirectory(prefix=".gguf-", dir=folder) as temporary:
        whole = Path(temporary) / path.name
        _write(whole, architecture, config, adapter, found)
        num_bytes = whole.stat().st_size
        whole.replace(path)
    return WrittenGguf(path, len(found.modules), num_bytes)


def _write(path: Path, architecture: str, config: dict[str, Any], adapter: Path, found: AdapterFile) -> None:
    writer = GGUFWriter(path, architecture)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 1.0)
    with open_files(adapter) as (_, weights):
        for module in found.modules:
            name = f"blk.{module.layer}.{_NAMES[module.projection]}.weight"
            writer.add_tensor(f"{name}.lora_a", _values(weights, module.a))
            writer.add_tensor(f"{name}.lora_b", _scaled(weights, module, architecture, config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _scaled(weights: BinaryIO, module: AdapterModule, architecture: str, config: dict[str, Any]) -> NDArray[np.float32]:
    """Return b of shape [out, rank] with the module's scaling in it, its rows in llama.cpp's order."""
    b = _values(weights, module.b) * np.float32(module.scaling * module.rank)
    if architecture not in PERMUTED or module.projection not in ("q_proj", "k_proj"):
        return b
    num_heads = config["num_attention_heads"]
    if module.projection == "k_proj":
        num_heads = config.get("num_key_value_heads") or num_heads
    if len(b) % (2 * num_heads):
        raise AdapterRejected([f"layer {module.layer} {module.projection}: {len(b)} rows are not of {num_heads} heads"])
    return interleave_halves(b, num_heads)


def interleave_halves(rows: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Return rows of q or k [out, any] with the two rotary halves of each head interleaved, as in llama.cpp."""
    halves = rows.reshape(num_heads, 2, len(rows) // num_heads // 2, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


def _values(weights: BinaryIO, tensor: TensorInfo) -> NDArray[np.float32]:
    raw = b"".join(iter_tensor_bytes(weights, tensor))
    return np.ascontiguousarray(as_float32(raw, tensor.dtype).reshape(tensor.shape))


def _read_config(base: Path) -> dict[str, Any]:
    try:
        config = json.loads((base / CONFIG_NAME).read_text())
    except (OSError, ValueError) as error:
        raise NotConvertible(f"{base} is no folder of a model: {error}") from None
    if not isinstance(config, dict) or not isinstance(config.get("num_attention_heads"), int):
        raise NotConvertible(f"{base}: the configuration has no num_attention_heads")
    return config
