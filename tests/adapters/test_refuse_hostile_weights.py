"""A weights file that lies, breaks the format or doesn't match its configuration is refused before it is loaded."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.errors import AdapterRejected
from adapters.peft_format import WEIGHTS_NAME, check_fit, read_adapter
from adapters.safetensors_header import read_header
from tests.adapters.folders import (
    CONFIG,
    HIDDEN,
    NUM_LAYERS,
    TARGETS,
    Tensors,
    good_tensors,
    header_of,
    safetensors_bytes,
    tensor,
    tensor_name,
    write_adapter,
)

A, B = good_tensors()
DATA = b"".join(data for _, _, data in good_tensors().values())
PREFIX = "base_model.model.model.layers.0"


def rewrite(folder: Path, header: dict[str, Any] | bytes, data: bytes = DATA) -> Path:
    write_adapter(folder)
    (folder / WEIGHTS_NAME).write_bytes(safetensors_bytes(header, data))
    return folder


def header_with(name: str, **entry: Any) -> dict[str, Any]:
    header = header_of(good_tensors())
    return {**header, name: {**header[name], **entry}}


HEADERS: dict[str, tuple[Callable[[], dict[str, Any] | bytes], bytes, str]] = {
    "not_json": (lambda: b"{]", DATA, "header is not valid JSON"),
    "empty": (lambda: b"", DATA, "header is not valid JSON"),
    "list": (lambda: b"[]", DATA, "header is not a JSON object"),
    "duplicate_name": (lambda: b'{"a": {}, "a": {}}', DATA, "the key 'a' occurs twice"),
    "entry_is_a_number": (lambda: {"a": 1}, DATA, "its entry must hold dtype, shape and data_offsets"),
    "entry_has_more": (lambda: header_with(A, extra=1), DATA, "its entry must hold"),
    "integers": (lambda: header_with(A, dtype="I64"), DATA, "dtype 'I64' is not one of F32, F16, BF16"),
    "doubles": (lambda: header_with(A, dtype="F64"), DATA, "dtype 'F64'"),
    "dtype_is_a_list": (lambda: header_with(A, dtype=["F32"]), DATA, "is not one of"),
    "negative_shape": (lambda: header_with(A, shape=[-2, -HIDDEN]), DATA, "shape must be a list"),
    "bool_shape": (lambda: header_with(A, shape=[True, 16]), DATA, "shape must be a list"),
    "float_shape": (lambda: header_with(A, shape=[2.0, HIDDEN]), DATA, "shape must be a list"),
    "many_dimensions": (lambda: header_with(A, shape=[1] * 9), DATA, "at most 8 sizes"),
    "shape_lies": (lambda: header_with(A, shape=[2, HIDDEN + 1]), DATA, "takes 72 bytes, data_offsets give 64"),
    "shape_overflows": (lambda: header_with(A, shape=[2**52, 2**52]), DATA, "bytes, data_offsets give 64"),
    "offsets_backwards": (lambda: header_with(A, data_offsets=[64, 0]), DATA, "data_offsets give -64"),
    "offsets_negative": (lambda: header_with(A, data_offsets=[-64, 0]), DATA, "data_offsets must be two offsets"),
    "offsets_beyond_the_file": (lambda: header_with(B, data_offsets=[1000, 1064]), DATA, "of a file of"),
    "overlap": (lambda: header_with(B, data_offsets=[32, 96]), DATA, "overlaps the one before it"),
    "gap": (lambda: header_with(B, data_offsets=[68, 132]), DATA + b"1234", "4 bytes before tensor"),
    "trailing_bytes": (lambda: header_of(good_tensors()), DATA + b"12345", "the last 5 bytes belong to no tensor"),
    "data_cut_short": (lambda: header_of(good_tensors()), DATA[:-1], "of a file of"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_that_is_not_exact_is_refused(case: str, tmp_path: Path) -> None:
    make_header, data, reason = HEADERS[case]
    with pytest.raises(AdapterRejected) as refusal:
        read_adapter(rewrite(tmp_path, make_header(), data))
    assert reason in str(refusal.value)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "is cut short"),
        (b"\x01\x00", "is cut short"),
        ((2**63).to_bytes(8, "little"), "has a header of 9223372036854775808 bytes"),
        ((100).to_bytes(8, "little") + b"{}", "is cut short"),
        (pickle.dumps({"weights": [1.0] * 8}), "is a pickle"),
        (b"PK\x03\x04" + bytes(100), "is a zip file, as torch.save writes it"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "is Git LFS's pointer"),
    ],
    ids=["empty", "half_a_length", "length_2^63", "length_beyond_the_file", "pickle", "torch", "git_lfs"],
)
def test_a_file_that_can_not_hold_its_header_is_refused(raw: bytes, reason: str, tmp_path: Path) -> None:
    write_adapter(tmp_path)
    (tmp_path / WEIGHTS_NAME).write_bytes(raw)
    with pytest.raises(AdapterRejected, match=reason):
        read_adapter(tmp_path)


def test_an_oversized_header_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "sparse.safetensors"
    with path.open("wb") as file:
        file.write((2**40).to_bytes(8, "little"))
        file.truncate(2**40 + 8)
    with path.open("rb") as file, pytest.raises(AdapterRejected, match="has a header of 1099511627776 bytes, over"):
        read_header(file, path.name)


TENSORS: dict[str, tuple[Tensors, str]] = {
    "none": ({}, "holds no tensors"),
    "a_without_b": ({A: good_tensors()[A]}, "q_proj: lora_B is missing"),
    "b_without_a": ({B: good_tensors()[B]}, "q_proj: lora_A is missing"),
    "embedding": (
        {**good_tensors(), "base_model.model.model.embed_tokens.lora_embedding_A": tensor(2, 32)},
        "embed_tokens.lora_embedding_A' is not lora_A or lora_B",
    ),
    "lm_head": ({**good_tensors(), "base_model.model.lm_head.lora_A.weight": tensor(2, HIDDEN)}, "lm_head"),
    "magnitudes": ({**good_tensors(), f"{PREFIX}.self_attn.q_proj.lora_magnitude_vector": tensor(8)}, "magnitude"),
    "bias": ({**good_tensors(), f"{PREFIX}.self_attn.q_proj.lora_B.bias": tensor(HIDDEN)}, "lora_B.bias"),
    "other_block": ({f"{PREFIX}.mlp.q_proj.lora_A.weight": tensor(2, HIDDEN)}, "mlp.q_proj"),
    "leading_zero": ({tensor_name(0, "self_attn.q_proj", "A").replace(".0.", ".00."): tensor(2, 8)}, "layers.00"),
    "newline_after_the_name": ({**good_tensors(), A + "\n": tensor(2, HIDDEN)}, "is not lora_A"),
    "twice": (
        {**good_tensors(), A.replace(".weight", ".default.weight"): tensor(2, HIDDEN)},
        "q_proj: lora_A is there twice",
    ),
    "rank_differs_from_the_config": (good_tensors(rank=4), "lora_A has rank 4, the configuration says 2"),
    "transposed": ({A: tensor(HIDDEN, 2), B: good_tensors()[B]}, "lora_A has rank 8"),
    "three_dimensions": ({A: tensor(2, HIDDEN, 1), B: good_tensors()[B]}, "has shape [2, 8, 1], not [rank, in]"),
    "empty_tensor": ({A: tensor(2, 0), B: good_tensors()[B]}, "lora_A has shape [2, 0]"),
}


@pytest.mark.parametrize("case", TENSORS)
def test_tensors_that_do_not_make_up_modules_are_refused(case: str, tmp_path: Path) -> None:
    tensors, reason = TENSORS[case]
    with pytest.raises(AdapterRejected) as refusal:
        read_adapter(write_adapter(tmp_path, tensors=tensors))
    assert reason in str(refusal.value).replace("\\n", "\n")


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        ("F32", np.array([0x7FC00000], "<u4")),
        ("F32", np.array([0xFF800000], "<u4")),
        ("F16", np.array([0x7E00], "<u2")),
        ("F16", np.array([0xFC00], "<u2")),
        ("BF16", np.array([0x7FC0], "<u2")),
        ("BF16", np.array([0xFF80], "<u2")),
    ],
    ids=["f32_nan", "f32_-inf", "f16_nan", "f16_-inf", "bf16_nan", "bf16_-inf"],
)
def test_weights_that_are_not_finite_are_refused(dtype: str, bits: Any, tmp_path: Path) -> None:
    raw = bytes(HIDDEN * 2 * bits.itemsize - bits.itemsize) + bits.tobytes()
    tensors: Tensors = {A: good_tensors()[A], B: (dtype, (HIDDEN, 2), raw)}
    with pytest.raises(AdapterRejected, match=r"lora_B\.weight' holds NaN or infinity"):
        read_adapter(write_adapter(tmp_path, tensors=tensors))


@pytest.mark.parametrize("name", ["adapter_config.json", WEIGHTS_NAME])
@pytest.mark.parametrize(
    ("replace", "reason"),
    [(Path.unlink, "is missing"), (os.mkfifo, "is not a regular file"), (Path.mkdir, "is not a regular file")],
    ids=["missing", "pipe", "folder"],
)
def test_what_is_not_a_file_is_refused_without_waiting(name: str, replace: Any, reason: str, tmp_path: Path) -> None:
    path = write_adapter(tmp_path) / name
    if replace is not Path.unlink:
        path.unlink()
    replace(path)
    with pytest.raises(AdapterRejected, match=f"{name} {reason}"):
        read_adapter(tmp_path)


def test_modules_that_the_base_model_lacks_are_all_listed(tmp_path: Path) -> None:
    modules = {"self_attn.q_proj": 0, "self_attn.k_proj": 0, "mlp.up_proj": 1, "self_attn.v_proj": NUM_LAYERS}
    tensors: Tensors = {}
    for module, layer in modules.items():
        tensors[tensor_name(layer, module, "A")] = tensor(2, HIDDEN)
        tensors[tensor_name(layer, module, "B")] = tensor(HIDDEN, 2)
    adapter = read_adapter(write_adapter(tmp_path, CONFIG, tensors))
    targets = {name: shape for name, shape in TARGETS.items() if name != "up_proj"}
    with pytest.raises(AdapterRejected) as refusal:
        check_fit(adapter, targets, NUM_LAYERS)
    assert refusal.value.reasons == [
        "layer 0 k_proj: made for (in, out) = (8, 8), the base model has (8, 4)",
        "layer 1 up_proj: the base model takes no adapter there",
        "layer 2 v_proj: the base model has 2 layers",
    ]


def test_300_mutants_are_refused_or_read_and_never_anything_else(tmp_path: Path) -> None:
    """Each mutant is a good weights file with random bytes changed, cut out or doubled, from a fixed seed."""
    path = write_adapter(tmp_path) / WEIGHTS_NAME
    good = path.read_bytes()
    num_refused = 0
    for seed in range(300):
        draw = random.Random(seed)
        mutant = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            at, length = draw.randrange(len(mutant)), draw.randint(1, 8)
            mutant[at : at + length] = draw.choice([draw.randbytes(length), b"", bytes(mutant[at : at + length]) * 2])
        path.write_bytes(mutant)
        try:
            read_adapter(tmp_path)
        except AdapterRejected as refusal:
            assert refusal.reasons
            num_refused += 1
    assert num_refused > 200


def test_a_header_whose_length_looks_like_a_pickle_is_read(tmp_path: Path) -> None:
    """A header of 640 bytes makes the file begin with 0x80 0x02, as a pickle of protocol 2 does."""
    header = header_of(good_tensors())
    padding = 640 - len(safetensors_bytes(header, b"")) + 8
    read_adapter(write_adapter(tmp_path, padding=padding))
    assert (tmp_path / WEIGHTS_NAME).read_bytes().startswith(b"\x80\x02")
