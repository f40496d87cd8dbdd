"""A GPU's memory is divided without counting a byte twice, and an impossible division names the variables that
decide it."""

from __future__ import annotations

import pytest
import torch

from engine.config import EngineConfig, ModelConfig, RopeParameters, UnsupportedModel
from engine.cuda.accelerator import MemoryCounts
from engine.cuda.memory import Division, divide_memory, explain_out_of_memory
from engine.cuda.profile import largest_plans
from engine.cuda.setup import check_model, step_limits
from engine.hardware import SetupError

GIB = 1 << 30
H100 = MemoryCounts(used=16 * GIB, total=80 * GIB)


def test_all_memory_within_the_fraction_is_divided() -> None:
    division = divide_memory(H100, 2 * GIB, 0.9, None, None)
    assert division.kv_cache + division.adapters == 72 * GIB - 18 * GIB
    assert division.adapters == pytest.approx(5.4 * GIB, abs=1)


def test_sizes_that_are_configured_are_taken_as_they_are() -> None:
    assert divide_memory(H100, 0, 0.9, 10 * GIB, 3 * GIB) == Division(10 * GIB, 3 * GIB)
    assert divide_memory(H100, 0, 0.9, None, 3 * GIB) == Division(53 * GIB, 3 * GIB)
    assert divide_memory(H100, 0, 0.5, 10 * GIB, None).kv_cache == 10 * GIB


@pytest.mark.parametrize(
    ("peak", "fraction", "kv_cache", "adapters", "names"),
    [
        (60 * GIB, 0.9, None, None, ("LORIKEET_MAX_BATCHED_TOKENS", "LORIKEET_MAX_NUM_SEQS")),
        (0, 0.1, None, None, ("LORIKEET_GPU_MEMORY_FRACTION=0.1",)),
        (0, 0.9, 55 * GIB, None, ("LORIKEET_KV_CACHE_BYTES", "LORIKEET_ADAPTER_DEVICE_BYTES")),
        (0, 0.9, None, 57 * GIB, ("LORIKEET_ADAPTER_DEVICE_BYTES",)),
    ],
)
def test_memory_that_does_not_fit_is_named_by_its_variables(
    peak: int, fraction: float, kv_cache: int | None, adapters: int | None, names: tuple[str, ...]
) -> None:
    with pytest.raises(SetupError) as refused:
        divide_memory(H100, peak, fraction, kv_cache, adapters)
    assert all(name in str(refused.value) for name in names)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be reported later"),
        RuntimeError("CUDA driver error: out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
    ids=str,
)
def test_out_of_memory_says_what_was_done_and_what_to_change(error: RuntimeError) -> None:
    with (
        pytest.raises(SetupError, match="while graphs were captured: lower LORIKEET_MAX_NUM_SEQS"),
        explain_out_of_memory("graphs were captured", "lower LORIKEET_MAX_NUM_SEQS"),
    ):
        raise error


@pytest.mark.parametrize("text", ["CUDA error: an illegal memory access was encountered", "shapes do not match"])
def test_other_faults_at_start_stay_what_they_are(text: str) -> None:
    with pytest.raises(RuntimeError, match=text) as raised, explain_out_of_memory("graphs were captured", "do this"):
        raise RuntimeError(text)
    assert not isinstance(raised.value, SetupError)


def config(**changes: int) -> EngineConfig:
    return EngineConfig(model_dir="", adapter_store="", endpoint="", **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("num_tokens", "context"), [(512, 8192), (512, 100), (7, 3)])
def test_the_profiled_steps_are_as_large_as_any(num_tokens: int, context: int) -> None:
    limits = step_limits(config(max_batched_tokens=num_tokens, max_num_seqs=4, num_draft_tokens=3), context)
    assert limits.max_decode_rows == min(16, num_tokens) and limits.max_sequences == min(20, num_tokens)
    assert limits.max_prefills == min(4, num_tokens)
    prompts, both = largest_plans(limits, 16, 0)
    assert prompts.num_tokens == limits.max_rows == num_tokens
    assert both.num_tokens == min(num_tokens, 16 + 4 * context)
    for plan in (prompts, both):
        assert len(plan.chunks) <= limits.max_sequences
        assert all(chunk.num_tokens <= context for chunk in plan.prefills)
        blocks = [block for chunk in plan.prefills for block in chunk.sequence.block_tables[0]]
        assert blocks == list(range(len(blocks)))
    assert len(both.decodes) == limits.max_decode_rows
    assert all((chunk.first, chunk.num_tokens) == (context - 1, 1) for chunk in both.decodes)


LLAMA = ModelConfig("llama", 100, 64, 96, 2, 4, 2, 16, 1e-6, RopeParameters(1e4), 64, True)


@pytest.mark.parametrize(
    ("head_dim", "num_kv_heads", "intermediate", "why"),
    [(24, 2, 96, "head_dim is 24"), (512, 2, 96, "head_dim"), (16, 2, 97, "multiples of 8"), (16, 0, 96, "")],
)
def test_a_model_that_no_kernel_takes_is_refused(head_dim: int, num_kv_heads: int, intermediate: int, why: str) -> None:
    heads = 18 if not num_kv_heads else 4
    model = ModelConfig(
        "llama", 100, 64, intermediate, 2, heads, num_kv_heads or 2, head_dim, 1e-6, LLAMA.rope, 64, True
    )
    with pytest.raises(UnsupportedModel, match=why or "9 heads share a key"):
        check_model(model, torch.bfloat16)
    check_model(LLAMA, torch.bfloat16)
