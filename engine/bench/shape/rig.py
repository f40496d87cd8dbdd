"""A device with a random model, its adapters in a real pool, and steps of plans made by hand.

The engine's own runner and pool are measured; there is no scheduling.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many

import torch
from torch import Tensor

from engine.bench.shape.floors import adapter_elements
from engine.bench.shape.sizes import Sizes
from engine.bench.shape.weights import RandomAdapters, RandomTensors
from engine.config import EngineConfig, ModelConfig
from engine.cuda.accelerator import Accelerator
from engine.cuda.norm import TritonNorm
from engine.cuda.setup import build_around, check_model
from engine.device import Step, kv_token_bytes
from engine.lora.loader import loading_executor
from engine.lora.pool import AdapterPool
from engine.model_runner import ModelRunner
from engine.models.weights import assemble
from engine.protocol import GenerateRequest, SamplingParams
from engine.sampling.sampler import Sampler
from engine.scheduling.completion import take_launch, take_result
from engine.sequence import Chunk, Plan, Sequence

MAX_TOKENS = 1 << 20  # that a sequence is asked for: more than any run takes


class Rig:
    """A device with a model, adapters and sequences.

    A sequence keeps its blocks from its start until all sequences end.
    """

    def __init__(self, config: EngineConfig, model: ModelConfig, dtype: torch.dtype, accelerator: Accelerator) -> None:
        check_model(model, dtype)
        self.config = config
        self.model = model
        self.dtype = dtype
        self.accelerator = accelerator
        self.tensors = RandomTensors(dtype, accelerator.device)
        self.device = build_around(config, model, assemble(self.tensors.take, model, TritonNorm), accelerator)
        self.wake: Callable[[], None] = lambda: None  # for the pool, when a load ends
        self._next_block = 0

    def open(self, adapters: RandomAdapters) -> None:
        """Make the adapter pool, and the path that asks the pool for adapters."""
        self.pool = AdapterPool(
            adapters.load,
            self.config.max_adapters,
            wake=lambda: self.wake(),
            max_bytes=self.device.adapter_bytes,
            to_device=self.device.to_device,
            vacate=self.device.vacate,
            executor=loading_executor(),
        )
        self.path = self.device.make_path(self.pool.adapter)
        sampler = Sampler(self.model.eos_token_ids, self.device.transfers, self.device.choose, self.device.adjust)
        self.runner = ModelRunner(self.path, sampler, self.device.transfers)

    def start(self, prompt: list[int], num_tokens: int, adapter: str = "") -> Sequence:
        """Return a sequence of a prompt with room for num_tokens more tokens.

        adapter: the key of an adapter, which is loaded first if need be; "" for the base model.
        """
        request = GenerateRequest(
            "bench", prompt, SamplingParams(MAX_TOKENS, temperature=0.0), "bench", adapter=adapter
        )
        sequence = Sequence(request, list(prompt), seed=0, arrived_s=0.0)
        num_blocks = -(-(len(prompt) + num_tokens) // self.config.block_size)
        starts = [self._next_block + table * num_blocks for table in range(self.device.layout.num_tables)]
        sequence.block_tables = [list(range(first, first + num_blocks)) for first in starts]
        self._next_block = starts[-1] + num_blocks
        assert self._next_block <= self.device.num_blocks, "the cache is too small for this scenario"
        if adapter:
            self.pool.preload(adapter)
            sequence.adapter_slot = self.pool.acquire(adapter)
        return sequence

    def end(self, sequences: Many[Sequence]) -> None:
        """End sequences, which have to be all that the rig has started, and free their blocks and slots."""
        for sequence in sequences:
            if sequence.adapter_slot is not None:
                self.pool.release(sequence.adapter_slot)
        self._next_block = 0

    def prefill(self, sequences: Many[Sequence]) -> None:
        """Compute all of the sequences' prompts, in as many steps as it takes."""
        limit = self.config.max_batched_tokens
        step: list[Chunk] = []
        for sequence in sequences:
            chunk = Chunk.of(sequence, 0, len(sequence.token_ids))
            if step and sum(c.num_tokens for c in step) + chunk.num_tokens > limit:
                self.step(Plan([], step))
                step = []
            step.append(chunk)
        self.step(Plan([], step))

    def launch(self, plan: Plan) -> Step:
        """Launch a plan. Each sequence's token is pending until `take`."""
        step = self.runner.launch(plan)
        for chunk in plan.chunks:
            take_launch(chunk)
        return step

    def take(self, plan: Plan, step: Step) -> None:
        """Wait for the step of a plan, and append the chosen tokens to the sequences."""
        for chunk, result in zip(plan.chunks, step.wait(), strict=True):
            take_result(chunk, result, frozenset())

    def step(self, plan: Plan) -> None:
        """Compute a plan, wait for it, and append the chosen tokens to the sequences."""
        self.take(plan, self.launch(plan))

    @torch.inference_mode()
    def logits(self, plan: Plan, rows: list[int]) -> Tensor:
        """Return the logits of these rows: [W, V] fp32, valid until the next step."""
        return self.path.logits(self.path.forward(plan, rows))


def decode_plan(sequences: Many[Sequence]) -> Plan:
    """Return a plan of a token for each sequence, those with an adapter first, by slot, as a scheduler orders them."""
    ordered = sorted(sequences, key=lambda s: (s.adapter_slot is None, s.adapter_slot))
    return Plan([Chunk.of(sequence, sequence.num_computed, 1) for sequence in ordered], [])


def rig_config(model: ModelConfig, sizes: Sizes, dtype: torch.dtype) -> EngineConfig:
    """Return the configuration of an engine for these sizes.

    The engine has memory for what the scenarios need, since the checks need some beside it.
    """
    num_tokens = 2 * sizes.streams * (sizes.context + 8 * (sizes.steps + 8)) + 4 * sizes.chunks * sizes.chunk_tokens
    adapter_bytes = adapter_elements(model, sizes.rank) * dtype.itemsize
    return EngineConfig(
        model_dir="",
        adapter_store="",
        endpoint="",
        kv_cache_bytes=num_tokens * kv_token_bytes(model, dtype),
        max_model_len=min(model.max_position, 2 * max(sizes.context, sizes.chunk_tokens) + 1024),
        max_num_seqs=sizes.streams,
        max_batched_tokens=max(sizes.chunks * sizes.chunk_tokens, sizes.context, sizes.streams),
        max_adapters=sizes.slots,
        max_adapter_rank=sizes.rank,
        adapter_device_bytes=(sizes.slots + 1) * adapter_bytes,
    )
