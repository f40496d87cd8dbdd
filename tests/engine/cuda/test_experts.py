"""Mixtures of experts on the GPU's path, with adapters on experts, answer as transformers and peft do.

On a machine without a GPU the kernels are interpreted, and steps are computed at once; the second family, whose experts
have other names, runs with --full there.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig, ModelConfig, UnsupportedModel
from engine.cuda.setup import build_cuda
from engine.device import Device
from tests.engine.cuda.recording import CountingCudaAccelerator, RecordingAccelerator
from tests.engine.harness import run_engine
from tests.engine.models.general import AdaptedBase
from tests.engine.models.test_experts import ON_EXPERTS

pytestmark = pytest.mark.filterwarnings("ignore:The following .* keys did not match:RuntimeWarning")
SIZES = {"max_batched_tokens": 16, "max_num_seqs": 3, "max_adapters": 4, "max_adapter_rank": 8, "max_model_len": 64}


def build(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> Device:
    accelerator = CountingCudaAccelerator() if torch.cuda.is_available() else RecordingAccelerator()
    return build_cuda(config, model, dtype, accelerator)


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
def test_base_and_adapters_on_experts_in_one_batch_equal_peft(family: str, tmp_path: Path, full: bool) -> None:
    if family == "mixtral" and not (full or torch.cuda.is_available()):
        pytest.skip("make long-kernels")
    adapters = {name: ON_EXPERTS[name] for name in ("all", "patterns")}
    base = AdaptedBase(tmp_path, family, adapters, num_hidden_layers=2, hidden_size=32, head_dim=16)
    requests = base.requests((17, 2), 2)
    config = base.config(decoder="own", **SIZES)
    answers = run_engine(config, requests[::2], {2: requests[1::2]}, build_device=build)
    base.assert_follow(requests, answers)


def test_sinks_are_refused(tmp_path: Path) -> None:
    base = AdaptedBase(tmp_path, "gpt_oss", {})
    with pytest.raises(UnsupportedModel, match="sinks"):
        run_engine(base.config(decoder="own", **SIZES), [], build_device=build)
