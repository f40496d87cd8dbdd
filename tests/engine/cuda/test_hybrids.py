"""Models with states on the GPU's path, with adapters, answer as transformers and peft do, from snapshots too.

On a machine without a GPU the kernels are interpreted, and steps are computed at once.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig, ModelConfig
from engine.cuda.setup import build_cuda
from engine.device import Device
from tests.engine.cuda.recording import CountingCudaAccelerator, RecordingAccelerator
from tests.engine.harness import greedy, run_engine
from tests.engine.models.general import AdaptedBase
from tests.engine.models.test_hybrids import ADAPTERS, ON_EXPERTS
from tests.engine.models.tiny import FAMILIES

SIZES = {"max_batched_tokens": 16, "max_num_seqs": 3, "max_adapters": 4, "max_adapter_rank": 8, "max_model_len": 64}


def build(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> Device:
    accelerator = CountingCudaAccelerator() if torch.cuda.is_available() else RecordingAccelerator()
    return build_cuda(config, model, dtype, accelerator)


@pytest.mark.parametrize("name", ["qwen3.5", "granite-hybrid", "granite-hybrid-moe"])
def test_chunks_decodes_and_snapshots_equal_transformers_and_peft(name: str, tmp_path: Path) -> None:
    """A prompt is longer than a step; the last request goes on from the snapshot of the first one."""
    config_class, _, changes = FAMILIES[name]
    layers = ["linear_attention", "full_attention"]
    small = {"num_hidden_layers": 2, "hidden_size": 32, "head_dim": 16, "layer_types": layers}
    base = AdaptedBase(tmp_path, config_class.model_type, {"all": ADAPTERS["all"]}, **(changes | small))
    requests = base.requests((21, 2), 2)
    again = greedy("/again", [*requests[0].prompt_token_ids, 7], 2)
    config = base.config(decoder="own", **SIZES)
    answers = run_engine(config, requests[::2], {2: requests[1::2], 6: [again]}, build_device=build)
    base.assert_follow([*requests, again], answers)
    assert answers["/again"].final.usage.cached_tokens == 16


@pytest.mark.filterwarnings("ignore:The following .* keys did not match:RuntimeWarning")
@pytest.mark.parametrize("name", ["qwen3.5-moe", "qwen3-next"])
def test_a_shared_expert_with_a_factor_of_its_own_equals_peft(name: str, tmp_path: Path, full: bool) -> None:
    """The factor has one output, beside which matrices of adapters lie, and layers after it have more."""
    if name == "qwen3-next" and not (full or torch.cuda.is_available()):
        pytest.skip("make long-kernels")
    config_class, _, changes = FAMILIES[name]
    layers = ["linear_attention", "full_attention"]
    small = {"num_hidden_layers": 2, "hidden_size": 32, "head_dim": 16, "layer_types": layers}
    adapters = {"shared": ON_EXPERTS["shared"] | {"r": 5}, "experts": ON_EXPERTS["experts"]}
    base = AdaptedBase(tmp_path, config_class.model_type, adapters, **(changes | small))
    requests = base.requests((17, 2), 2)
    config = base.config(decoder="own", **SIZES)
    answers = run_engine(config, requests[::2], {2: requests[1::2]}, build_device=build)
    base.assert_follow(requests, answers)
