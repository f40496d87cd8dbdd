"""A step as large as any, for its peak of memory. What it computes has no meaning."""

from __future__ import annotations

import torch

from engine.cuda.accelerator import Accelerator
from engine.cuda.adapters import DeviceSlots
from engine.cuda.attention import PagedCache
from engine.cuda.path import CudaPath, StepLimits
from engine.lora.layer import LoadedAdapter
from engine.models.decoder import Decoder
from engine.protocol import GenerateRequest, SamplingParams
from engine.sampling.logits_processors import Row
from engine.sampling.sampler import Sampler
from engine.sequence import Chunk, Plan, Sequence


def peak_of_largest_step(
    accelerator: Accelerator,
    decoder: Decoder,
    slots: DeviceSlots,
    sampler: Sampler,
    limits: StepLimits,
    block_size: int,
) -> int:
    """Bytes, beyond what is taken already, of max_rows rows of prompts with adapters and of choosing max_decode_rows
    tokens; its small cache included."""
    plan = largest_plan(limits, block_size)
    rows = [row for chunk in plan.prefills for row in range(chunk.num_tokens)][: limits.max_decode_rows]

    @torch.inference_mode()
    def run() -> None:
        num_blocks = sum(len(chunk.sequence.block_table) for chunk in plan.prefills)
        cache = PagedCache(
            decoder.config, num_blocks, block_size, limits.max_context, decoder.dtype, accelerator.device
        )
        nothing = LoadedAdapter("", {}, 0)
        path = CudaPath(accelerator, decoder, cache, slots, lambda slot: nothing, limits, use_graphs=False)
        logits = path.logits(path.forward(plan, rows))
        sampler.choose(logits, [Row(plan.prefills[0].sequence)] * len(rows))

    return accelerator.peak_bytes(run)


def largest_plan(limits: StepLimits, block_size: int) -> Plan:
    """max_rows rows in as few prompts as the context allows, all in slot 0."""
    prefills, left, next_block = [], limits.max_rows, 0
    while left:
        num_tokens = min(left, limits.max_context)
        request = GenerateRequest("profile", [0] * num_tokens, SamplingParams(1, temperature=1.0, top_p=0.9), "")
        sequence = Sequence(request, [0] * num_tokens, seed=0, arrived_s=0.0, adapter_slot=0)
        num_blocks = -(-num_tokens // block_size)
        sequence.block_table = list(range(next_block, next_block + num_blocks))
        prefills.append(Chunk(sequence, 0, num_tokens))
        left, next_block = left - num_tokens, next_block + num_blocks
    return Plan([], prefills)
