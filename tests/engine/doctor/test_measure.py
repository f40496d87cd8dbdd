"""The doctor multiplies by matrices of the formats that an engine has."""

from __future__ import annotations

import pytest
import torch

from engine.doctor.measure import HEAD, LAYER, LAYERS, measure
from engine.doctor.report import Choice
from kernels.cpu.library import installed


@pytest.mark.skipif(installed() is None, reason="the native kernels are not built: run make")
def test_the_head_of_a_model_in_int4_is_in_int8() -> None:
    choice = Choice(
        device="cpu",
        dtype="float32",
        products="int4 avx2",
        native_paths=("avx2",),
        num_threads=torch.get_num_threads(),
        reasons=(),
        advice=(),
    )
    in_layers = LAYERS * sum(outputs * inputs for outputs, inputs in LAYER) // 32 * 20
    assert measure(choice, 0.01).weights_bytes == in_layers + HEAD[0] * HEAD[1] // 32 * 34
