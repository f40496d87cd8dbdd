"""Logits of the GPU's path against the forward pass by its definition, in fp32, with adapters merged into its matrices.

Without a GPU the kernels are interpreted, in fp32 alone. On one, in its own number formats and at real sizes:
    pytest tests/engine/cuda/test_whole_model.py
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
import torch

from engine.bench.shape.checks import check_logits
from engine.bench.shape.rig import Rig, decode_plan, rig_config
from engine.bench.shape.sizes import DRY, SHAPES, Sizes
from engine.bench.shape.weights import RandomAdapters
from engine.config import ModelConfig, RopeParameters
from engine.config.model import NormNames
from engine.cuda.accelerator import Accelerator
from engine.cuda.in_order import InOrderAccelerator

EVERYTHING = msgspec.structs.replace(
    SHAPES["tiny"],
    family="qwen3",
    qk_norm=True,
    qkv_bias=True,
    windows=(4, None),
    unrotated_layers=(1,),
    embedding_multiplier=2.0,
    attention_multiplier=0.3,
    residual_multiplier=0.5,
    logits_divisor=3.0,
)

GEMMA3 = msgspec.structs.replace(
    SHAPES["tiny"],
    family="gemma3_text",
    qk_norm=True,
    activation="gelu_tanh",
    norm_offset=1.0,
    norms=NormNames(
        after_attention="post_attention_layernorm",
        before_feed_forward="pre_feedforward_layernorm",
        after_feed_forward="post_feedforward_layernorm",
    ),
    windows=(4, None),
    window_rope=RopeParameters(100.0),
    embedding_multiplier=5.5,
    attention_multiplier=0.3,
)

OTHERS = msgspec.structs.replace(
    SHAPES["tiny"],
    family="of no one",
    whole_qk_norm=True,
    norms=NormNames("", "post_attention_layernorm", "", "post_feedforward_layernorm"),
    rope=RopeParameters(100.0, rotary_dim=8, original_max_position=3),
    query_growth=0.5,
    attention_softcap=1.5,
    logits_softcap=4.0,
)


def open_rig(model: ModelConfig, sizes: Sizes, dtype: torch.dtype) -> tuple[Rig, RandomAdapters]:
    """Return a rig and its adapters, which have two ranks."""
    accelerator: Accelerator = InOrderAccelerator()
    if torch.cuda.is_available():
        from engine.cuda.nvidia import CudaAccelerator

        accelerator = CudaAccelerator(torch.device("cuda"))
    rig = Rig(rig_config(model, sizes, dtype), model, dtype, accelerator)
    adapters = RandomAdapters(model, dtype, [sizes.rank, max(sizes.rank // 2, 1)], pin=rig.device.pin)
    rig.open(adapters)
    return rig, adapters


def assert_right(rig: Rig, adapters: RandomAdapters) -> None:
    rows = list(check_logits(rig, adapters))
    assert len(rows) == 3 and all(row["right"] for row in rows), rows


@pytest.fixture(scope="module", params=[EVERYTHING, GEMMA3, OTHERS], ids=["everything", "gemma3", "others"])
def tiny(request: pytest.FixtureRequest) -> Iterator[tuple[Rig, RandomAdapters]]:
    """Give rigs of tiny models that have all options of a config; the benchmark's dry run checks a plain model in the
    same way.
    """
    rig, adapters = open_rig(request.param, DRY, torch.float32)
    yield rig, adapters
    rig.pool.close()


def test_logits_of_a_model_with_everything_equal_the_definition(tiny: tuple[Rig, RandomAdapters]) -> None:
    assert_right(*tiny)


def test_within_a_bucket_neighbors_change_no_bit(tiny: tuple[Rig, RandomAdapters], full: bool) -> None:
    """One decode has the same bits beside two pairs of other rows, which differ in prompts, contexts and adapters; it
    is the first row of three, then the second."""
    rig, _ = tiny
    if rig.model is not EVERYTHING and not (full or torch.cuda.is_available()):
        pytest.skip("make long-kernels")
    asked = rig.start([1, 2, 3, 4], 4, adapter="0")
    pairs = [
        [rig.start([5], 4, adapter="1"), rig.start([7, 8, 9], 4)],
        [rig.start([10, 11, 12, 13], 4, adapter="0"), rig.start([14, 15], 4, adapter="1")],
    ]
    for sequence in (asked, *pairs[0], *pairs[1]):
        rig.prefill([sequence])
    found = []
    for index, order in enumerate([[asked, *pairs[0]], [pairs[1][0], asked, pairs[1][1]]]):
        plan = decode_plan(order)
        assert plan.decodes[index].sequence is asked
        found.append(rig.logits(plan, [0, 1, 2])[index].clone())
    rig.end([asked, *pairs[0], *pairs[1]])
    assert torch.equal(*found)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", ["smollm2-135m", "llama-3.1-8b"])
def test_logits_on_a_gpu_equal_the_definition(shape: str, dtype: torch.dtype) -> None:
    model = SHAPES[shape]
    if shape == "llama-3.1-8b":
        model = msgspec.structs.replace(model, num_layers=4)  # in fp32, too, and each layer is as the others
    sizes = Sizes(streams=8, context=64, slots=4, chunks=2, chunk_tokens=64, steps=2)
    rig, adapters = open_rig(model, sizes, dtype)
    assert_right(rig, adapters)
    rig.pool.close()
