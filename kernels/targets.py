"""The shapes that kernels are made for, and the launches of one decoder layer of such a model.

Tensors may exist in shape only (PyTorch's `meta` device): decisions by contents are made on the GPU. Used to compile
ahead of time. Knows no configuration files of models.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.gpu.activation import gated_launch
from kernels.gpu.decode_attention import decode_launches
from kernels.gpu.decode_attention import workspace_elements as attention_elements
from kernels.gpu.experts import grouped_launch, num_expert_chunks
from kernels.gpu.fed_tokens import fed_tokens_launch
from kernels.gpu.launch import Launch
from kernels.gpu.lora import ChunkTable, Shrink, SlotTable, activate_launch, expand_launch, resolve_launch
from kernels.gpu.lora import workspace_elements as lora_elements
from kernels.gpu.norm import norm_launch
from kernels.gpu.paged_contexts import PagedContexts
from kernels.gpu.penalties import TokenPairs, penalize_launch
from kernels.gpu.prefill_attention import prefill_launch
from kernels.gpu.quantized.float8 import Float8Rows, Float8Weight, empty_rows, float8_launches, quantize_launch
from kernels.gpu.quantized.int4 import Int4Weight, int4_launches, step_of
from kernels.gpu.query_tiles import QueryTiles, max_tiles
from kernels.gpu.rope_kv import HeadNorms, rope_kv_launch
from kernels.gpu.sampling import BEST, SEARCH_BLOCK, SamplingRows, sample_launch
from kernels.gpu.tuning import lora_block_m, queries_at_once
from kernels.gpu.work_list import WorkList, max_chunks

META = torch.device("meta")
BLOCK_SIZE = 16
MAX_CONTEXT = 8192


class Target(NamedTuple):
    """A model's shape, and the settings of its engine."""

    name: str
    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    num_layers: int
    max_rank: int
    num_slots: int = 64
    dtype: torch.dtype = torch.bfloat16
    window: int | None = None
    head_norms: bool = False
    softcap: float = 0.0
    num_experts: int = 0
    """The experts of a layer, whose inner size is `intermediate`; 0: one feed-forward part for all."""
    num_chosen: int = 0
    """The number of experts that each token goes through; 0 in models without experts."""

    @property
    def expert_groups(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        """The groups of an expert's projections that share an input, by name: (in, (out of each projection))."""
        return {name: self.groups[name] for name in ("gate, up", "down")}

    @property
    def groups(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        """The groups of projections that share an input, by name: (in, (out of each projection))."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return {
            "q, k, v": (self.hidden, (q, kv, kv)),
            "o": (q, (self.hidden,)),
            "gate, up": (self.hidden, (self.intermediate,) * 2),
            "down": (self.intermediate, (self.hidden,)),
        }


TARGETS = (
    Target("8B, rank 16", 4096, 14336, 32, 8, 128, 128256, 32, max_rank=16),
    Target("8B, rank 64", 4096, 14336, 32, 8, 128, 128256, 32, max_rank=64),
    Target("demo", 576, 1536, 9, 3, 64, 49152, 30, max_rank=64),
    Target(
        "0.6B, fp16", 1024, 3072, 16, 8, 128, 151936, 28, max_rank=16, dtype=torch.float16, window=1024, head_norms=True
    ),
    Target("Gemma 2 9B", 3584, 14336, 16, 8, 256, 256000, 42, max_rank=16, window=4096, softcap=50.0),
    Target("Gemma 2 27B", 4608, 36864, 32, 16, 128, 256000, 46, max_rank=16, window=4096, softcap=50.0),
    # A mixture of experts: the kernels that others do not have are compiled for it.
    Target(
        "30B-A3B, rank 16",
        2048,
        768,
        32,
        4,
        128,
        151936,
        48,
        max_rank=16,
        head_norms=True,
        num_experts=128,
        num_chosen=8,
    ),
)
NUM_DECODES = 64
NUM_PREFILL_ROWS = 2048


def empty(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return a tensor on the meta device, which has a shape and no memory."""
    return torch.empty(shape, dtype=dtype, device=META)


def launches(target: Target) -> Iterator[tuple[str, Launch]]:
    """Yield every kernel of a decode step and of a prefill step, with its name.

    For a mixture of experts, yield only the kernels of experts.
    """
    if target.num_experts:
        yield from _experts(target)
        return
    for phase, num_rows in (("decode", NUM_DECODES), ("prefill", NUM_PREFILL_ROWS)):
        yield from _lora(target, num_rows, phase)
        yield from _layer(target, num_rows, phase)
        yield from _quantized(target, num_rows, phase)
    yield from _sampling(target)


def _experts(target: Target) -> Iterator[tuple[str, Launch]]:
    """Yield the kernels of experts of a decode step and of a prefill step, with those of adapters on experts."""
    for phase, num_tokens in (("decode", NUM_DECODES), ("prefill", NUM_PREFILL_ROWS)):
        num_rows = num_tokens * target.num_chosen
        chunks = empty(num_expert_chunks(num_rows, target.num_experts), 3, dtype=torch.int32)
        for name, (in_features, sizes) in target.expert_groups.items():
            x = empty(num_rows, in_features, dtype=target.dtype)
            out = empty(num_rows, sum(sizes), dtype=target.dtype)
            weight = empty(target.num_experts, sum(sizes), in_features, dtype=target.dtype)
            yield f"{phase} experts {name}", grouped_launch(out, x, weight, None, chunks)
            bias = empty(target.num_experts, sum(sizes), dtype=target.dtype)
            yield f"{phase} experts {name}, biases", grouped_launch(out, x, weight, bias, chunks)
        block_m = lora_block_m(num_rows)
        num_chunks = max_chunks(num_rows, target.num_slots * target.num_experts, block_m)
        work = WorkList(empty(num_rows, dtype=torch.int32), empty(num_chunks, 3, dtype=torch.int32), block_m)
        for name, (in_features, sizes) in target.expert_groups.items():
            x = empty(num_rows, in_features, dtype=target.dtype)
            elements = lora_elements(num_rows, in_features, len(sizes), target.max_rank, target.dtype, META)
            table = ChunkTable.empty(1, len(sizes), num_chunks, META).group(0, 0, len(sizes))
            shrink = Shrink.of(x, table, target.max_rank, work, empty(elements, dtype=torch.float32))
            yield f"{phase} experts shrink {name}", shrink.launch()
            out = empty(num_rows, sum(sizes), dtype=target.dtype)
            yield f"{phase} experts expand {name}", expand_launch(out, sizes, shrink)


def _lora(target: Target, num_rows: int, phase: str) -> Iterator[tuple[str, Launch]]:
    block_m = lora_block_m(num_rows)
    num_chunks = max_chunks(num_rows, target.num_slots, block_m)
    work = WorkList(empty(num_rows, dtype=torch.int32), empty(num_chunks, 3, dtype=torch.int32), block_m)
    for name, (in_features, sizes) in target.groups.items():
        x = empty(num_rows, in_features, dtype=target.dtype)
        out = empty(num_rows, sum(sizes), dtype=target.dtype)
        slots = SlotTable.empty(1, len(sizes), target.num_slots, META)
        table = ChunkTable.empty(1, len(sizes), num_chunks, META)
        if name == "q, k, v":
            yield f"{phase} resolve", resolve_launch(table, slots, work)
        elements = lora_elements(num_rows, in_features, len(sizes), target.max_rank, target.dtype, META)
        shrink = Shrink.of(
            x, table.group(0, 0, len(sizes)), target.max_rank, work, empty(elements, dtype=torch.float32)
        )
        yield f"{phase} shrink {name}", shrink.launch()
        if name == "gate, up":
            yield (
                f"{phase} expand and silu",
                activate_launch(empty(num_rows, sizes[0], dtype=target.dtype), out, shrink),
            )
        else:
            yield f"{phase} expand {name}", expand_launch(out, sizes, shrink)


def _layer(target: Target, num_rows: int, phase: str) -> Iterator[tuple[str, Launch]]:
    heads, kv_heads, head_dim, dtype = target.num_heads, target.num_kv_heads, target.head_dim, target.dtype
    x = empty(num_rows, target.hidden, dtype=dtype)
    weight = empty(target.hidden, dtype=dtype)
    qkv = empty(num_rows, heads + 2 * kv_heads, head_dim, dtype=dtype)
    cache = empty(2, kv_heads, 1 << 20, head_dim, dtype=dtype)
    table = empty(MAX_CONTEXT, head_dim // 2, dtype=torch.float32)
    rows = empty(num_rows, dtype=torch.int64)
    norms = HeadNorms(weight[:head_dim], weight[:head_dim], 1e-6) if target.head_norms else None
    yield f"{phase} norm", norm_launch(x, x, x, weight, 1e-5)
    yield f"{phase} rope and cache write", rope_kv_launch(qkv, rows, table, table, cache, rows, norms)
    eight, scales = cache.to(torch.float8_e4m3fn), empty(*cache.shape[:-1], dtype=torch.float32)
    yield f"{phase} rope and float8 cache write", rope_kv_launch(qkv, rows, table, table, eight, rows, norms, scales)
    q, out = qkv[:, :heads], empty(num_rows, heads, head_dim, dtype=dtype)
    if phase == "decode":
        contexts = _contexts(num_rows)
        elements = attention_elements(num_rows, heads, kv_heads, head_dim, MAX_CONTEXT, dtype, META)
        partials = empty(elements, dtype=torch.float32)
        split, combine = decode_launches(out, q, cache, contexts, partials, target.window, target.softcap)
        yield "decode attention, split", split
        split, _ = decode_launches(out, q, eight, contexts, partials, target.window, target.softcap, scales=scales)
        yield "decode attention over float8, split", split
        yield "decode attention, combine", combine
    else:
        at_once = queries_at_once(head_dim, heads // kv_heads, dtype, META)
        tiles = QueryTiles(empty(max_tiles(num_rows, 4, at_once), 2, dtype=torch.int32), at_once)
        contexts = _contexts(4)._replace(tiles=tiles)
        yield "prefill attention", prefill_launch(out, q, cache, contexts, target.window, target.softcap)
        of_eight = prefill_launch(out, q, eight, contexts, target.window, target.softcap, scales=scales)
        yield "prefill attention over float8", of_eight
    gate_up = empty(num_rows, 2 * target.intermediate, dtype=dtype)
    activated = empty(num_rows, target.intermediate, dtype=dtype)
    yield f"{phase} silu", gated_launch(activated, gate_up)
    yield f"{phase} gelu", gated_launch(activated, gate_up, gelu=True)
    yield f"{phase} fed tokens", fed_tokens_launch(rows, rows, rows)


def _quantized(target: Target, num_rows: int, phase: str) -> Iterator[tuple[str, Launch]]:
    """Yield the products of a layer's last matrix in each of the formats, with a bias, added to an existing output."""
    num_inputs, (num_outputs,) = target.groups["down"]
    x = empty(num_rows, num_inputs, dtype=target.dtype)
    out = empty(num_rows, num_outputs, dtype=target.dtype)
    bias = out[0]
    numbers = empty(num_outputs, num_inputs, dtype=torch.float8_e4m3fn)
    for name, rows, stretch in (("rows", 1, 0), ("blocks", 128, 128)):
        of_rows = empty_rows(x, stretch)
        shape = -(-num_outputs // rows), -(-num_inputs // (stretch or num_inputs))
        weight = Float8Weight(numbers, empty(*shape, dtype=torch.float32), rows, stretch)
        yield f"{phase} float8 {name}, inputs", quantize_launch(of_rows, x, stretch)
        for launch, part in zip(float8_launches(out, of_rows, weight, bias, add=True), ("", ", splits"), strict=False):
            yield f"{phase} float8 {name}{part}", launch
        yield (
            f"{phase} float8 {name} by wide rows",
            float8_launches(out, Float8Rows(x, None), weight, bias, add=True)[0],
        )
    group = 128 if num_inputs % 128 == 0 else 64
    scales = empty(num_inputs // group, num_outputs, dtype=torch.float16)
    packed, zeros = empty(num_outputs, num_inputs // 2, dtype=torch.uint8), scales.to(torch.uint8)
    order = empty(num_inputs, dtype=torch.int32)
    step = step_of(num_inputs, group)
    assert step is not None
    for name, places in ("int4", None), ("int4, act-order", order):
        of_integers = Int4Weight(packed, scales, zeros, places, group, step)
        yield f"{phase} {name}", int4_launches(out, x, of_integers, bias, add=True)[0]


def _contexts(num_sequences: int) -> PagedContexts:
    return PagedContexts(
        empty(num_sequences, MAX_CONTEXT // BLOCK_SIZE, dtype=torch.int32),
        empty(num_sequences, dtype=torch.int32),
        empty(num_sequences + 1, dtype=torch.int32),
        MAX_CONTEXT,
        BLOCK_SIZE,
    )


def _sampling(target: Target) -> Iterator[tuple[str, Launch]]:
    logits = empty(NUM_DECODES, target.vocab_size, dtype=torch.float32)
    numbers, counts, ids = (empty(NUM_DECODES, dtype=dtype) for dtype in (torch.float32, torch.int32, torch.int64))
    rows = SamplingRows(numbers, counts, numbers, numbers, ids, ids)
    bests = empty(NUM_DECODES, BEST * SEARCH_BLOCK, dtype=torch.float32)
    yield "sample", sample_launch(ids, logits, rows, bests)
    pairs = TokenPairs(counts, counts, counts, numbers)
    yield "penalties", penalize_launch(logits, pairs, numbers, numbers, numbers)
