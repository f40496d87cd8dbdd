"""Hostile cases: weights that are no adapter's, beside a configuration that is good."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from adapters.peft_config import CONFIG_NAME
from adapters.peft_format import WEIGHTS_NAME
from tests.adapters.folders import HIDDEN, Tensors, good_tensors, header_of, safetensors_bytes, tensor, tensor_name
from tests.adapters.hostile.case import BOUNDS, Case, config_bytes, folder_of, weights_bytes

A, B = good_tensors()
DATA = b"".join(data for _, _, data in good_tensors().values())
PREFIX = "base_model.model.model.layers.0.self_attn.q_proj"


def raw(weights: bytes, reason: str, **config: Any) -> Case:
    return Case(folder_of({CONFIG_NAME: config_bytes(**config), WEIGHTS_NAME: weights}), reason)


def header(changes: dict[str, Any] | bytes, reason: str, data: bytes = DATA) -> Case:
    """Return a case of weights with another header.

    changes: a whole header in bytes, or entries to replace in the good one. reason: the reason for which the weights
    are refused. data: the bytes behind the header.
    """
    if isinstance(changes, bytes):
        return raw(safetensors_bytes(changes, data), reason)
    entries = header_of(good_tensors())
    for name, change in changes.items():
        entries[name] = {**entries.get(name, {}), **change} if isinstance(change, dict) else change
    return raw(safetensors_bytes(entries, data), reason)


def tensors(changed: Tensors, reason: str, **config: Any) -> Case:
    data = b"".join(data for _, _, data in changed.values())
    return raw(safetensors_bytes(header_of(changed), data), reason, **config)


def with_value(dtype: str, bits: int) -> Tensors:
    """Return good tensors, but for a lora_B of zeros with one value of these bits."""
    values = np.zeros(2 * HIDDEN, "<u4" if dtype == "F32" else "<u2")
    values[3] = bits
    return {A: good_tensors()[A], B: (dtype, (HIDDEN, 2), values.tobytes())}


def zeros(*shape: int) -> tuple[str, tuple[int, ...], bytes]:
    return "F32", shape, bytes(4 * int(np.prod(shape)))


def tensors_at(module: str, layer: int = 0, size_in: int = HIDDEN, size_out: int = HIDDEN) -> Tensors:
    names = tensor_name(layer, module, "A"), tensor_name(layer, module, "B")
    return {names[0]: tensor(2, size_in, seed=1), names[1]: tensor(size_out, 2, seed=2)}


def sparse(start: bytes, num_bytes: int) -> Callable[[Path], Path]:
    """Return a function that writes weights much larger than the disk they take.

    start: the first bytes. num_bytes: the size of the file.
    """

    def build(folder: Path) -> Path:
        folder_of({CONFIG_NAME: config_bytes()})(folder)
        with (folder / WEIGHTS_NAME).open("wb") as file:
            file.write(start)
            file.truncate(num_bytes)
        return folder

    return build


CASES: dict[str, Case] = {
    "pickle": raw(pickle.dumps({"a": [1.0] * 100}), "is a pickle: only safetensors is read"),
    "pickle of protocol 2": raw(pickle.dumps({"a": [1.0] * 100}, protocol=2), "is a pickle"),
    "torch's zip": raw(b"PK\x03\x04" + bytes(500), "is a zip file, as torch.save writes it"),
    "gguf": raw(b"GGUF\x03\x00\x00\x00" + bytes(500), "is a GGUF file"),
    "numpy": raw(b"\x93NUMPY\x01\x00v\x00" + bytes(500), "is a NumPy file"),
    "hdf5": raw(b"\x89HDF\r\n\x1a\n" + bytes(500), "is an HDF5 file"),
    "git lfs pointer": raw(b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "is Git LFS's pointer"),
    "empty": raw(b"", "is cut short: 0 bytes do not hold its header"),
    "seven bytes": raw(b"\x02\0\0\0\0\0\0", "is cut short"),
    "header larger than the file": raw((5000).to_bytes(8, "little") + b"{}", "is cut short: 10 bytes"),
    "header of 2^63 bytes": raw((2**63).to_bytes(8, "little") + b"{}", "a header of 9223372036854775808 bytes"),
    "header of 8 MiB": Case(sparse((8 << 20).to_bytes(8, "little"), 16 << 20), "a header of 8388608 bytes, over"),
    "larger than allowed": Case(sparse(weights_bytes(), 64 << 20), f"unpacked, {BOUNDS.max_bytes} are allowed"),
    "header of no bytes": raw(bytes(8) + DATA, "header is not valid JSON"),
    "header cut in half": header(b'{"a": {"dtype": "F32", "sha', "header is not valid JSON"),
    "header is a list": header(b"[]", "header is not a JSON object"),
    "header in utf-16": header('{"a": 1}'.encode("utf-16"), "header is not valid JSON"),
    "deep header": header(b'{"a":' * 500_000, "header is not valid JSON: nested too deeply"),
    "deep lists in the header": header(b"[" * 3_000_000, "header is not valid JSON: nested too deeply"),
    "duplicate tensor": header(b'{"a": {}, "a": {}}', "the key 'a' occurs twice"),
    "a number of 100,000 digits": header(b'{"a": ' + b"9" * 100_000 + b"}", "header is not valid JSON"),
    "a number beyond floats": header({A: {"shape": [1e308 * 10, 8]}}, "header is not valid JSON"),
    "metadata is a number": header({"__metadata__": 7}, "__metadata__ must map names to texts"),
    "metadata nests": header({"__metadata__": {"a": {"b": "c"}}}, "__metadata__ must map names to texts"),
    "integers": header({A: {"dtype": "I64"}}, "dtype 'I64' is not one of F32, F16, BF16"),
    "float8": header({A: {"dtype": "F8_E4M3"}}, "dtype 'F8_E4M3' is not one of"),
    "dtype is a list": header({A: {"dtype": ["F32"]}}, "is not one of F32"),
    "entry is no object": header({A: 1}, "its entry must hold dtype, shape and data_offsets"),
    "negative shape": header({A: {"shape": [-2, -HIDDEN]}}, "shape must be a list"),
    "shape of bools": header({A: {"shape": [True, 16]}}, "shape must be a list"),
    "shape of floats": header({A: {"shape": [2.0, HIDDEN]}}, "shape must be a list"),
    "shape of a thousand axes": header({A: {"shape": [1] * 1000}}, "at most 8 sizes"),
    "shape that overflows": header({A: {"shape": [2**52, 2**52]}}, "bytes, data_offsets give 64"),
    "shape that lies": header({A: {"shape": [2, HIDDEN + 1]}}, "takes 72 bytes, data_offsets give 64"),
    "offsets backwards": header({A: {"data_offsets": [64, 0]}}, "data_offsets give -64"),
    "offsets below zero": header({A: {"data_offsets": [-64, 0]}}, "data_offsets must be two offsets"),
    "offsets beyond the file": header({B: {"data_offsets": [1000, 1064]}}, "ends at byte"),
    "offsets overlap": header({B: {"data_offsets": [32, 96]}}, "overlaps the one before it"),
    "both tensors are the same bytes": header({B: {"data_offsets": [0, 64]}}, "overlaps the one before it"),
    "offsets leave a gap": header({B: {"data_offsets": [68, 132]}}, "4 bytes before tensor", DATA + b"gap!"),
    "bytes at the end": header({}, "the last 5 bytes belong to no tensor", DATA + b"12345"),
    "data cut short": header({}, "ends at byte", DATA[:-1]),
    "no tensors": tensors({}, "holds no tensors"),
    "nan": tensors(with_value("F32", 0x7FC00000), "lora_B.weight' holds NaN or infinity"),
    "infinity": tensors(with_value("F32", 0x7F800000), "holds NaN or infinity"),
    "nan in fp16": tensors(with_value("F16", 0x7E01), "holds NaN or infinity"),
    "-infinity in bf16": tensors(with_value("BF16", 0xFF80), "holds NaN or infinity"),
    "every lora_B is zero": tensors({A: tensor(2, HIDDEN), B: zeros(HIDDEN, 2)}, "every lora_B is zero"),
    "every lora_A is zero": tensors({A: zeros(2, HIDDEN), B: tensor(HIDDEN, 2)}, "every lora_A is zero"),
    "one of each side is zero": tensors(
        {
            A: zeros(2, HIDDEN),
            B: tensor(HIDDEN, 2, seed=1),
            tensor_name(1, "self_attn.q_proj", "A"): tensor(2, HIDDEN, seed=1),
            tensor_name(1, "self_attn.q_proj", "B"): zeros(HIDDEN, 2),
        },
        "lora_A or lora_B of every module is zero: it changes nothing",
    ),
    "lora_A alone": tensors({A: good_tensors()[A]}, "q_proj: lora_B is missing"),
    "both infixes": tensors(
        {**good_tensors(), A.replace(".weight", ".default.weight"): tensor(2, HIDDEN)}, "lora_A is there twice"
    ),
    "dora's magnitudes": tensors({**good_tensors(), f"{PREFIX}.lora_magnitude_vector": tensor(8)}, "lora_magnitude"),
    "a bias": tensors({**good_tensors(), f"{PREFIX}.lora_B.bias": tensor(HIDDEN)}, "lora_B.bias' is not lora_A"),
    "an embedding": tensors({**good_tensors(), "base_model.model.lm_head.weight": tensor(8, 8)}, "lm_head.weight' is"),
    "whole base weights": tensors({**good_tensors(), f"{PREFIX}.base_layer.weight": tensor(8, 8)}, "base_layer"),
    "a name with a newline": tensors({**good_tensors(), A + "\n": tensor(2, HIDDEN)}, "is not lora_A"),
    "a name with a terminal's escape": tensors({**good_tensors(), "\x1b[2J": tensor(2)}, "'\\x1b[2J' is not lora_A"),
    "a name of half a character": header({"\ud800": {}}, "header is not valid JSON: 'utf-8'"),
    "a name of a megabyte": tensors({**good_tensors(), "x" * (1 << 20): tensor(2)}, "is not lora_A"),
    "a layer with a zero in front": tensors(
        {A.replace(".0.", ".00."): tensor(2, HIDDEN)}, "layers.00.self_attn.q_proj.lora_A.weight' is not lora_A"
    ),
    "rank other than configured": tensors(good_tensors(rank=4), "lora_A has rank 4, the configuration says 2"),
    "transposed": tensors({A: tensor(HIDDEN, 2), B: good_tensors()[B]}, "lora_A has rank 8"),
    "three axes": tensors({A: tensor(2, HIDDEN, 1), B: good_tensors()[B]}, "has shape [2, 8, 1], not [rank, in]"),
    "an empty tensor": tensors({A: zeros(2, 0), B: good_tensors()[B]}, "lora_A has shape [2, 0]"),
    "another model's sizes": tensors(tensors_at("self_attn.q_proj", size_in=4096), "made for (in, out) = (4096, 8)"),
    "another model's layers": tensors(tensors_at("mlp.up_proj", layer=31, size_out=16), "the base model has 2 layers"),
    "a projection in the wrong block": tensors(tensors_at("mlp.q_proj"), "mlp.q_proj.lora_A.weight' is not lora_A"),
    "a rank above the operator's": tensors(
        good_tensors(rank=128), "the adapter's rank is 128, above LORIKEET_MAX_ADAPTER_RANK, which is 64", r=128
    ),
}
