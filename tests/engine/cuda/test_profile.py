"""The steps that are computed at start take the memory that the largest ones will take, so that it is set aside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine.bench.shape.sizes import SHAPES
from engine.bench.shape.weights import RandomTensors
from engine.config import EngineConfig
from engine.cuda.adapters import DeviceSlots
from engine.cuda.in_order import InOrderAccelerator
from engine.cuda.norm import TritonNorm
from engine.cuda.profile import peak_of_largest_steps
from engine.cuda.sampling import TritonChoice, penalize_rows_
from engine.cuda.setup import step_limits
from engine.cuda.transfers import PinnedTransfers
from engine.device import layout_for
from engine.models.decoder import Decoder
from engine.models.weights import assemble
from engine.sampling.sampler import Sampler
from kernels.gpu.activation import silu_mul
from kernels.gpu.attention import workspace_elements


class Allocations(TorchDispatchMode):
    """A dispatch mode that records the bytes of every tensor made within it."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        if isinstance(out, Tensor):
            self.num_bytes.append(out.nbytes)
        return out


class WeighingAccelerator(InOrderAccelerator):
    """An accelerator for which a step's peak of memory is the sum of all tensors that the step makes."""

    def __init__(self) -> None:
        super().__init__()
        self.weighed: list[list[int]] = []

    def peak_bytes(self, run: Callable[[], object]) -> int:
        with Allocations() as made:
            run()
        self.weighed.append(made.num_bytes)
        return sum(made.num_bytes)


@pytest.mark.skipif(torch.cuda.is_available(), reason="what the kernels take is weighed on a CPU, interpreted")
@pytest.mark.parametrize("num_slots", [0, 2])
def test_all_rows_and_partial_sums_at_the_longest_context_are_counted_for_steps_and_for_graphs(
    num_slots: int,
) -> None:
    """All of this is counted with and without adapters. A graph has a step's rows for prompts, and beside them the rows
    of decodes."""
    model, accelerator = SHAPES["tiny"], WeighingAccelerator()
    weights = assemble(RandomTensors(torch.float32, accelerator.device).take, model, TritonNorm)
    transfers = PinnedTransfers(accelerator)
    slots = DeviceSlots(model.num_layers, num_slots, 8, transfers, accelerator.device)
    sampler = Sampler(model.eos_token_ids, transfers, TritonChoice(transfers), penalize_rows_)
    config = EngineConfig(model_dir="", adapter_store="", endpoint="", max_batched_tokens=5, max_num_seqs=3)
    limits = step_limits(config, 600)
    decoder = Decoder(model, weights, silu_mul)
    layout = layout_for(config, model)
    peak = peak_of_largest_steps(accelerator, decoder, slots, sampler, limits, 16, layout)
    elements = workspace_elements(
        3, model.num_heads, model.num_kv_heads, model.head_dim, 600, torch.float32, accelerator.device
    )
    for_steps, for_graphs = accelerator.weighed
    assert for_steps.count(4 * elements) >= 1 and for_graphs.count(4 * elements) >= 1
    row_bytes = 4 * model.hidden_size
    assert for_steps.count(5 * row_bytes) >= 1 and for_graphs.count((5 + 3) * row_bytes) >= 1
    assert peak == sum(for_steps) + sum(for_graphs)
