"""The digest changes with everything that an adapter computes from, and with nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adapters.digest import canonical_digest
from tests.adapters.folders import CONFIG, good_tensors, tensor, tensor_name, write_adapter

A, B = good_tensors()


@pytest.fixture
def digest(tmp_path: Path) -> str:
    return canonical_digest(write_adapter(tmp_path / "reference"))


def test_a_digest_is_64_hex_digits_that_never_change(digest: str) -> None:
    assert digest == "6be75adf02175885f12d53def1bbb2ba0b6a22912be5484374bf6aeb14234184"


def test_padding_of_the_header_does_not_count(digest: str, tmp_path: Path) -> None:
    assert canonical_digest(write_adapter(tmp_path, padding=24)) == digest


def test_the_order_of_tensors_does_not_count(digest: str, tmp_path: Path) -> None:
    assert canonical_digest(write_adapter(tmp_path, tensors=dict(reversed(good_tensors().items())))) == digest


def test_the_default_infix_of_names_does_not_count(digest: str, tmp_path: Path) -> None:
    tensors = {name.replace(".weight", ".default.weight"): value for name, value in good_tensors().items()}
    assert canonical_digest(write_adapter(tmp_path, tensors=tensors)) == digest


@pytest.mark.parametrize(
    "change",
    [
        {"lora_dropout": 0.1},
        {"base_model_name_or_path": "elsewhere"},
        {"target_modules": "all-linear"},
        {"rank_pattern": {"k_proj": 7}},
        {"r": 4, "rank_pattern": {"q_proj": 2}},
        {"lora_alpha": 4.0},
    ],
    ids=str,
)
def test_options_that_change_nothing_do_not_count(change: dict[str, Any], digest: str, tmp_path: Path) -> None:
    assert canonical_digest(write_adapter(tmp_path, {**CONFIG, **change})) == digest


@pytest.mark.parametrize("change", [{"lora_alpha": 5}, {"use_rslora": True}, {"alpha_pattern": {"q_proj": 1}}], ids=str)
def test_the_scaling_counts(change: dict[str, Any], digest: str, tmp_path: Path) -> None:
    assert canonical_digest(write_adapter(tmp_path, {**CONFIG, **change})) != digest


@pytest.mark.parametrize("side", [A, B], ids=["A", "B"])
def test_every_bit_of_a_tensor_counts(side: str, digest: str, tmp_path: Path) -> None:
    dtype, shape, data = good_tensors()[side]
    flipped = data[:-4] + bytes([data[-4] ^ 1]) + data[-3:]
    assert (
        canonical_digest(write_adapter(tmp_path, tensors={**good_tensors(), side: (dtype, shape, flipped)})) != digest
    )


def test_the_place_and_the_dtype_of_a_tensor_count(digest: str, tmp_path: Path) -> None:
    a, b = good_tensors().values()
    layer_1 = {tensor_name(1, "self_attn.q_proj", "A"): a, tensor_name(1, "self_attn.q_proj", "B"): b}
    o_proj = {tensor_name(0, "self_attn.o_proj", "A"): a, tensor_name(0, "self_attn.o_proj", "B"): b}
    half_as_f16 = {A: ("F16", (2, 8), bytes(32)), B: tensor(8, 2)}
    half_as_bf16 = {A: ("BF16", (2, 8), bytes(32)), B: tensor(8, 2)}
    contents = [layer_1, o_proj, half_as_f16, half_as_bf16]
    digests = {
        canonical_digest(write_adapter(tmp_path / str(number), tensors=tensors))
        for number, tensors in enumerate(contents)
    }
    assert len(digests | {digest}) == 5
