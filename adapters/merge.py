"""A base model with an adapter's weights added to its own: a plain model folder, for a deployment of one adapter.

W' = W + scaling * B @ A, in fp32 and rounded once, tensor by tensor: memory for the largest tensor a few times, however
large the model is. An entry point of its own: it needs torch, and nothing that serves imports it.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import safe_open
from torch import Tensor

from adapters.errors import AdapterRejected
from adapters.patterns.module_names import ModuleKey, module_key
from adapters.peft_format import WEIGHTS_NAME, AdapterModule, read_adapter
from adapters.shards import DTYPES, Entry, write_shard

INDEX_NAME = "model.safetensors.index.json"
CONFIG_NAME = "config.json"
# The files of a model folder beside its weights. Any other file, weights in other formats above all, is not the
# result's.
_COPIED = (
    *("generation_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt", "vocab.*", "*.model"),
    *("tokenizer*", "chat_template*", "*.jinja", "LICENSE*", "NOTICE*"),
)
MERGE_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_FLOATS = frozenset({"F64", *MERGE_DTYPES.values()})


class MergeRefused(Exception):
    """The error for folders that can't be merged as asked; the message has the reason."""


class MergedModel(msgspec.Struct, frozen=True):
    """The size of a merged model."""

    num_modules: int
    """Linears that the adapter changed."""
    num_bytes: int
    """Bytes of all tensors."""


def merge(base: Path, adapter: Path, out: Path, dtype: str | None = None) -> MergedModel:
    """Write base + adapter to the folder out, which appears when it is whole.

    dtype: a key of MERGE_DTYPES for all weights; None keeps the base's.

    Raises AdapterRejected: when the adapter does not fit the base; the error has every mismatch.
    Raises MergeRefused: when the folders cannot be merged for any other reason.
    """
    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise MergeRefused(f"{out} exists and is not an empty folder")
    paths = sorted(base.glob("*.safetensors"))
    if not paths or not (base / CONFIG_NAME).is_file():
        raise MergeRefused(
            f"{base} is not a model: it lacks {CONFIG_NAME} or *.safetensors, which "
            "`python -m engine.prepare FILE --convert --out DIR` makes of a .gguf file"
        )
    modules = {(module.layer, module.projection): module for module in read_adapter(adapter).modules}
    _check_fit(paths, modules)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as temporary:
        folder = Path(temporary) / out.name
        folder.mkdir()
        with safe_open(adapter / WEIGHTS_NAME, framework="pt") as adapter_file:
            merging = _Merging(adapter_file, modules, MERGE_DTYPES[dtype] if dtype else None)
            num_bytes = sum(merging.write(path, folder / path.name) for path in paths)
        _copy_rest(base, folder, dtype, num_bytes)
        folder.rename(out)
    return MergedModel(len(modules), num_bytes)


def _check_fit(paths: list[Path], modules: dict[ModuleKey, AdapterModule]) -> None:
    """Check that the adapter fits the base, whose shards are `paths`.

    Raises AdapterRejected: when the base has no linear of a module's shape in a floating-point dtype; the error has
    each module.
    """
    found: dict[ModuleKey, tuple[tuple[int, ...], str]] = {}
    for path in paths:
        with _open_shard(path) as shard:
            for name in shard.keys():  # noqa: SIM118 - it is not a dict
                key = _module_key(name)
                if key is not None:
                    part = shard.get_slice(name)
                    found[key] = tuple(part.get_shape()), part.get_dtype()
    reasons = []
    for key, module in modules.items():
        where = f"layer {key[0]} {key[1]}"
        wanted = (module.b.shape[0], module.a.shape[1])
        if key not in found:
            reasons.append(f"{where}: the base model has no such linear")
        elif found[key][0] != wanted:
            reasons.append(f"{where}: made for [out, in] = {list(wanted)}, the base model has {list(found[key][0])}")
        elif found[key][1] not in _FLOATS:
            reasons.append(f"{where}: the base model's weight is quantized ({found[key][1]})")
    if reasons:
        raise AdapterRejected(reasons)


class _Merging:
    """The merging of an adapter into the shards of its base.

    dtype: the dtype of all floating-point tensors of the result, in safetensors' words; None leaves each as it is.
    """

    def __init__(self, adapter: Any, modules: dict[ModuleKey, AdapterModule], dtype: str | None) -> None:
        self._adapter = adapter
        self._modules = modules
        self._dtype = dtype

    def write(self, source: Path, target: Path) -> int:
        """Write the shard `source` of the base, merged, to `target`; return the number of bytes of its tensors."""
        with _open_shard(source) as shard:
            entries = [self._entry(shard, name) for name in shard.offset_keys()]
            tensors = (self._tensor(shard, entry) for entry in entries)
            return write_shard(target, entries, tensors, shard.metadata() or {})

    def _entry(self, shard: Any, name: str) -> Entry:
        part = shard.get_slice(name)
        dtype = part.get_dtype()
        if dtype not in DTYPES:
            raise MergeRefused(f"{name} has the dtype {dtype}, which is not supported")
        return Entry(name, self._dtype if self._dtype and dtype in _FLOATS else dtype, tuple(part.get_shape()))

    def _tensor(self, shard: Any, entry: Entry) -> Tensor:
        weight: Tensor = shard.get_tensor(entry.name)
        dtype = DTYPES[entry.dtype]
        module = self._modules.get(_module_key(entry.name) or (-1, ""))
        if module is not None:
            a, b = (self._adapter.get_tensor(side.name).float() for side in (module.a, module.b))
            weight = torch.addmm(weight.float(), b, a, alpha=module.scaling)
        converted = weight.to(dtype)
        if module is not None and not bool(converted.isfinite().all()):
            raise MergeRefused(f"{entry.name}: a merged weight is too large for {entry.dtype}")
        return converted


def _copy_rest(base: Path, folder: Path, dtype: str | None, num_bytes: int) -> None:
    """Copy configuration, tokenizer and license, and write the index of the shards with its new total.

    dtype: the dtype that the configuration names; None: the base's. num_bytes: the bytes of all tensors.
    """
    for path in base.iterdir():
        if path.is_file() and any(fnmatch.fnmatch(path.name, pattern) for pattern in _COPIED):
            shutil.copyfile(path, folder / path.name)
    config = json.loads((base / CONFIG_NAME).read_bytes())
    if dtype is not None:
        config |= {key: dtype for key in ("torch_dtype", "dtype") if key in config} or {"dtype": dtype}
    (folder / CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n")
    if (base / INDEX_NAME).is_file():
        index = json.loads((base / INDEX_NAME).read_bytes())
        index["metadata"] = index.get("metadata", {}) | {"total_size": num_bytes}
        (folder / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n")


@contextlib.contextmanager
def _open_shard(path: Path) -> Iterator[Any]:
    with safe_open(path, framework="pt") as shard:
        yield shard


def _module_key(name: str) -> ModuleKey | None:
    return module_key(name.removesuffix(".weight")) if name.endswith(".weight") else None
