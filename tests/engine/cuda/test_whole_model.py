"""Logits of the GPU's path against the forward pass by its definition, in fp32, with adapters merged into its matrices.

Without a GPU the kernels are interpreted, in fp32 alone. On one, in its own number formats and at real sizes:
    pytest tests/engine/cuda/test_whole_model.py
"""

from __future__ import annotations

import msgspec
import pytest
import torch

from engine.bench.shape.checks import check_logits
from engine.bench.shape.rig import Rig, rig_config
from engine.bench.shape.sizes import DRY, SHAPES, Sizes
from engine.bench.shape.weights import RandomAdapters
from engine.config import ModelConfig
from engine.cuda.accelerator import Accelerator
from engine.cuda.in_order import InOrderAccelerator

QWEN3 = msgspec.structs.replace(SHAPES["tiny"], family="qwen3", qk_norm=True, qkv_bias=True, sliding_window=9)


def assert_right(model: ModelConfig, sizes: Sizes, dtype: torch.dtype, accelerator: Accelerator) -> None:
    rig = Rig(rig_config(model, sizes, dtype), model, dtype, accelerator)
    adapters = RandomAdapters(model, dtype, [sizes.rank, max(sizes.rank // 2, 1)], pin=rig.device.pin)
    rig.open(adapters)
    rows = list(check_logits(rig, adapters))
    rig.pool.close()
    assert len(rows) == 3 and all(row["right"] for row in rows), rows


@pytest.mark.skipif(torch.cuda.is_available(), reason="interpreted where there is no GPU")
def test_interpreted_logits_of_a_model_with_everything_equal_the_definition() -> None:
    """Norms of heads, biases and a window; the benchmark's dry run checks a plain model in the same way."""
    assert_right(QWEN3, DRY, torch.float32, InOrderAccelerator())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", ["smollm2-135m", "llama-3.1-8b"])
def test_logits_on_a_gpu_equal_the_definition(shape: str, dtype: torch.dtype) -> None:
    from engine.cuda.nvidia import CudaAccelerator

    model = SHAPES[shape]
    if shape == "llama-3.1-8b":
        model = msgspec.structs.replace(model, num_layers=4)  # in fp32, too, and each layer is as the others
    sizes = Sizes(streams=8, context=64, slots=4, chunks=2, chunk_tokens=64, steps=2)
    assert_right(model, sizes, dtype, CudaAccelerator(torch.device("cuda")))
