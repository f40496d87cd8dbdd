"""The largest possible steps, for their peaks of memory. Their results have no meaning.

They also compile every kernel that later steps launch, before anybody waits for one.
"""

from __future__ import annotations

import torch

from engine.config.cache_layout import CacheLayout
from engine.cuda.accelerator import Accelerator
from engine.cuda.adapters import DeviceSlots
from engine.cuda.attention import PagedCache
from engine.cuda.graphs import StepLimits
from engine.cuda.path import CudaPath, StepDecoder
from engine.lora.layer import LoadedAdapter
from engine.models.states import StateTable
from engine.protocol import GenerateRequest, SamplingParams
from engine.sampling.logits_processors import Row
from engine.sampling.sampler import Sampler
from engine.sequence import Chunk, Plan, Sequence

SAMPLED = SamplingParams(1, temperature=1.0, top_p=0.9, num_logprobs=1)
PENALIZED = SamplingParams(1, temperature=1.0, frequency_penalty=0.5, num_logprobs=1)


def peak_of_largest_steps(
    accelerator: Accelerator,
    decoder: StepDecoder,
    slots: DeviceSlots,
    sampler: Sampler,
    limits: StepLimits,
    block_size: int,
    layout: CacheLayout,
    *,
    in_float8: bool = False,
) -> int:
    """Return the peak bytes, beyond what is taken already, of steps and graphs.

    This is the peak of a step that is launched, and of the temporary memory that captured graphs keep for themselves:
    that of the largest. Small caches, of this layout, are included. in_float8: True if these caches are in e4m3.
    """
    prompts, both = largest_plans(limits, block_size, 0 if slots.num_slots else None, layout.num_tables)

    def path_of(num_blocks: int) -> CudaPath:
        """Return a path whose memory ends with it."""
        cache = PagedCache(
            decoder.config,
            num_blocks,
            block_size,
            limits.max_context,
            decoder.dtype,
            accelerator.device,
            layout=layout,
            in_float8=in_float8,
        )
        nothing, recurrence = LoadedAdapter("", {}, 0), decoder.config.recurrence
        states = None if recurrence is None else StateTable(recurrence, 1e-6, 1, accelerator.device)
        return CudaPath(
            accelerator, decoder, cache, slots, lambda slot: nothing, limits, use_graphs=False, states=states
        )

    def compute(plan: Plan) -> None:
        path = path_of(1 + max(max(chunk.sequence.block_tables[0]) for chunk in plan.chunks))
        num_sampled = min(limits.max_decode_rows, plan.num_tokens)
        logits = path.logits(path.forward(plan, range(num_sampled)))
        rows = [Row(_sequence(2, PENALIZED)), *[Row(_sequence(2, SAMPLED))] * (num_sampled - 1)]
        sampler.choose(logits, rows)

    @torch.inference_mode()
    def launched() -> None:
        compute(prompts)
        compute(both)

    @torch.inference_mode()
    def captured() -> None:
        path_of(1).launch_largest()

    return accelerator.peak_bytes(launched) + accelerator.peak_bytes(captured)


def largest_plans(
    limits: StepLimits, block_size: int, adapter_slot: int | None, num_tables: int = 1
) -> tuple[Plan, Plan]:
    """Return plans of prompts alone, and of as many decodes as there may be with prompts beside them; all in one slot.

    Each decode is at the end of the longest context, and all of them are the same sequence in a single block. All
    tables of a sequence are the same.
    """
    longest = _sequence(limits.max_context, SAMPLED, adapter_slot)
    longest.block_tables = [[0] * -(-limits.max_context // block_size)] * num_tables
    decodes = [Chunk.of(longest, limits.max_context - 1, 1)] * limits.max_decode_rows
    prompts = _prompts(limits, 0, block_size, adapter_slot, num_tables)
    beside = _prompts(limits, len(decodes), block_size, adapter_slot, num_tables)
    return Plan([], prompts), Plan(decodes, beside)


def _prompts(
    limits: StepLimits, num_decodes: int, block_size: int, adapter_slot: int | None, num_tables: int
) -> list[Chunk]:
    """Return chunks for the rows that decodes leave, in as few prompts as the context allows.

    num_decodes: the rows of decodes. adapter_slot: the slot of all prompts; None: the base. num_tables: the block
    tables of a sequence.
    """
    prompts, next_block = [], 0
    num_rows = min(limits.max_rows - num_decodes, (limits.max_sequences - num_decodes) * limits.max_context)
    for first in range(0, num_rows, limits.max_context):
        sequence = _sequence(min(num_rows - first, limits.max_context), SAMPLED, adapter_slot)
        num_blocks = -(-len(sequence.token_ids) // block_size)
        sequence.block_tables = [list(range(next_block, next_block + num_blocks))] * num_tables
        prompts.append(Chunk.of(sequence, 0, len(sequence.token_ids)))
        next_block += num_blocks
    return prompts


def _sequence(num_tokens: int, sampling: SamplingParams, adapter_slot: int | None = None) -> Sequence:
    """Return a sequence of num_tokens tokens whose prompt is one token.

    adapter_slot: the slot of its adapter; None: the base.
    """
    request = GenerateRequest("profile", [0], sampling, "")
    return Sequence(request, [0] * num_tokens, seed=0, arrived_s=0.0, adapter_slot=adapter_slot, state_slot=0)
