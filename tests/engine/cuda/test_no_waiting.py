"""Steps are launched without a wait of the host for the GPU, whatever requests ask for."""

from __future__ import annotations

from collections.abc import Sequence as Many

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.bench.shape.rig import Rig, decode_plan, rig_config
from engine.bench.shape.sizes import DRY, SHAPES
from engine.bench.shape.weights import RandomAdapters
from engine.protocol import SamplingParams
from engine.sequence import Chunk, Plan, Sequence

OPTIONS: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.7, "top_k": 5, "top_p": 0.8, "min_p": 0.02},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.7, "repetition_penalty": 1.3},
    "biased": {"logit_bias": {5: 4.0, 3: -100.0}, "min_tokens": 4},
    "log-probabilities": {"num_logprobs": 3, "num_prompt_logprobs": 2},
}


class EvenTokens:
    """A grammar that allows only tokens with even ids."""

    is_complete = False
    expected_cost_s = 0.0

    def fill_allowed(self, bitmask: NDArray[np.int32]) -> None:
        bitmask[:] = 0x55555555

    def accept(self, token_id: int) -> None:
        assert token_id % 2 == 0


def start_sequence(rig: Rig, options: dict[str, object], adapter: str, prompt: Many[int] = (1, 2, 3)) -> Sequence:
    sequence = rig.start(list(prompt), 4, adapter=adapter)
    sampling = msgspec.convert({"max_tokens": 64, "temperature": 1.0} | options, SamplingParams)
    sequence.request = msgspec.structs.replace(sequence.request, sampling=sampling)
    return sequence


def compute(rig: Rig, plan: Plan, mode: str) -> None:
    """Compute a plan.

    mode: the mode of `torch.cuda.set_sync_debug_mode`, in force until the step is launched.
    """
    torch.cuda.set_sync_debug_mode(mode)
    try:
        step = rig.runner.launch(plan)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for chunk, result in zip(plan.chunks, step.wait(), strict=True):
        chunk.sequence.num_computed = chunk.first + chunk.num_tokens
        chunk.sequence.token_ids += [sampled.token_id for sampled in result.sampled]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_no_option_makes_the_host_wait_while_a_step_is_launched() -> None:
    """Steps of prompts, of decodes beside prompts, of decodes from graphs, and of a prompt with all rows wanted are
    tried. Each is computed once before, since a first launch compiles kernels.
    """
    from engine.cuda.nvidia import CudaAccelerator

    model, sizes = SHAPES["tiny"], DRY._replace(streams=len(OPTIONS))
    rig = Rig(rig_config(model, sizes, torch.float32), model, torch.float32, CudaAccelerator(torch.device("cuda")))
    rig.open(RandomAdapters(model, torch.float32, [sizes.rank], pin=rig.device.pin))
    for mode in ("default", "error"):
        sequences = [start_sequence(rig, options, "0" if i % 2 else "") for i, options in enumerate(OPTIONS.values())]
        sequences[0].matcher = EvenTokens()
        first, later = ([Chunk.of(sequence, 0, 3) for sequence in part] for part in (sequences[:3], sequences[3:]))
        compute(rig, Plan([], first), mode)
        compute(rig, Plan(decode_plan(sequences[:3]).decodes, later), mode)
        compute(rig, decode_plan(sequences), mode)
        whole = start_sequence(rig, OPTIONS["log-probabilities"], "0", list(range(1, 11)))
        whole.request = msgspec.structs.replace(whole.request, pooling="mean")
        compute(rig, Plan([], [Chunk.of(whole, 0, 10)]), mode)
        assert all(token % 2 == 0 for token in sequences[0].token_ids[3:])
        rig.end([*sequences, whole])
    rig.pool.close()
