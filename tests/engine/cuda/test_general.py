"""Models that transformers computes, on the GPU's path: base and adapters in one batch equal transformers and peft.

On a machine without a GPU the kernels are interpreted, and steps are computed at once.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig, ModelConfig, UnsupportedModel
from engine.cuda.accelerator import Accelerator
from engine.cuda.general import build_general_cuda
from engine.cuda.in_order import InOrderAccelerator
from engine.device import Device
from tests.engine.harness import engine_config, run_engine
from tests.engine.models.general import AdaptedBase, save_general

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL = {"max_batched_tokens": 16, "max_num_seqs": 3, "max_adapters": 4, "max_adapter_rank": 16, "max_model_len": 64}


def build(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> Device:
    accelerator: Accelerator = InOrderAccelerator()
    if torch.cuda.is_available():
        from engine.cuda.nvidia import CudaAccelerator

        accelerator = CudaAccelerator(torch.device("cuda"))
    return build_general_cuda(config, model, dtype, accelerator)


@pytest.mark.parametrize("family", ["starcoder2", "gemma2"])
def test_chunks_and_decodes_equal_transformers_and_peft(family: str, tmp_path: Path) -> None:
    """A prompt is longer than a step and than the window."""
    base = AdaptedBase(tmp_path, family, **SIZES, num_key_value_heads=1)
    requests = base.requests((37,), 3)
    answers = run_engine(base.config(**SMALL), requests, build_device=build)
    base.assert_follow(requests, answers)


@pytest.mark.parametrize(("family", "why"), [("gpt_oss", "has sinks"), ("deepseek_v3", "has values of another size")])
def test_attention_that_the_kernels_do_not_compute_is_refused_by_layer(family: str, why: str, tmp_path: Path) -> None:
    save_general(family, tmp_path)
    with pytest.raises(UnsupportedModel, match=f"layer 0 {why}"):
        run_engine(engine_config(tmp_path, tmp_path / "store", decoder="transformers", **SMALL), [], build_device=build)
