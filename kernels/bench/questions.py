"""What `kernels.tune` asks the clock: for each kernel the sizes of blocks that there are to choose from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.bench.lora import GATE_UP, Adapters, LoraBatch
from kernels.bench.paged import PagedBatch
from kernels.bench.shapes import Shape
from kernels.gpu.decode_attention import decode_launches
from kernels.gpu.prefill_attention import prefill_launch
from kernels.gpu.tuning import (
    activate_blocks,
    activate_key,
    decode_blocks,
    decode_key,
    expand_blocks,
    expand_key,
    lora_block_m,
    prefill_blocks,
    prefill_key,
    shrink_blocks,
    shrink_key,
    shrink_sums,
    shrink_sums_key,
)

Sizes = Mapping[str, int]


class Question(NamedTuple):
    """key: in the table of `kernels.gpu.tuning`; choices: of each field; run: with these sizes and the others as they
    are -> what it computed."""

    key: str
    choices: Mapping[str, Sequence[int]]
    run: Callable[[Sizes], Tensor]


def questions(shape: Shape) -> Iterator[Question]:
    """Each key once: groups may share their widths."""
    asked = set()
    for question in _lora(shape):
        if question.key not in asked:
            asked.add(question.key)
            yield question
    yield _decode(shape)
    yield _prefill(shape)


def _lora(shape: Shape) -> Iterator[Question]:
    """How sums are split is asked with decodes, whose answer serves prefills too; then what may differ between them."""
    adapters = Adapters(shape, [shape.ranks[0]] * shape.num_adapters)
    decodes = LoraBatch(adapters, torch.arange(shape.num_decodes, device=shape.device) % shape.num_adapters)
    rows = torch.arange(4 * shape.prefill_rows, device=shape.device)
    prefills = LoraBatch(adapters, rows * shape.num_adapters // len(rows))
    for group in range(len(shape.groups)):
        yield _sums(decodes, group)
        for batch in (decodes, prefills):
            yield from _shrink(batch, group)
            yield from _expand(batch, group)


def _sums(batch: LoraBatch, group: int) -> Question:
    shape = batch.adapters.shape
    in_features, _ = shape.groups[group]
    in_force = shrink_sums(in_features, shape.dtype, shape.device)
    choices = {"split_length": (512, 1024, 2048), "block_k": (64, 128, 256)}
    run = _running(batch, group, lambda sizes: {"sums": in_force._replace(**sizes)})
    return Question(shrink_sums_key(in_features, shape.dtype), choices, run)


def _shrink(batch: LoraBatch, group: int) -> Iterator[Question]:
    shape, block_m = batch.adapters.shape, lora_block_m(len(batch.slots))
    in_features, _ = shape.groups[group]
    in_force = shrink_blocks(in_features, block_m, shape.dtype, shape.device)
    choices = {"block_r": (16, 32) if block_m > 16 else (16,), "num_warps": (2, 4, 8), "num_stages": (3, 4, 6)}
    run = _running(batch, group, lambda sizes: {"shrink_blocks": in_force._replace(**sizes)})
    yield Question(shrink_key(in_features, block_m, shape.dtype), choices, run)


def _expand(batch: LoraBatch, group: int) -> Iterator[Question]:
    shape, block_m = batch.adapters.shape, lora_block_m(len(batch.slots))
    _, sizes = shape.groups[group]
    tiles = (1, 2, 4, 8) if block_m > 16 else (1, 2)
    if group == GATE_UP:
        key = activate_key(sizes[0], block_m, shape.dtype)
        in_force = activate_blocks(sizes[0], block_m, shape.dtype, shape.device)
    else:
        key = expand_key(sum(sizes), block_m, shape.dtype)
        in_force = expand_blocks(sum(sizes), block_m, shape.dtype, shape.device)
    choices = {"block_n": (64, 128, 256), "tiles": tiles, "num_warps": (2, 4, 8), "num_stages": (1, 3)}
    yield Question(key, choices, _running(batch, group, lambda sizes: {"expand_blocks": in_force._replace(**sizes)}))


def _running(batch: LoraBatch, group: int, blocks: Callable[[Sizes], dict[str, Any]]) -> Callable[[Sizes], Tensor]:
    """All layers' launches of one group, with other sizes for one part of its blocks."""

    def run(sizes: Sizes) -> Tensor:
        if group != GATE_UP:
            batch.outs[group].zero_()
        for layer in range(batch.adapters.shape.num_layers):
            for launch in batch.launches(layer, group, **blocks(sizes)):
                launch.run()
        return batch.result(group)

    return run


def _decode(shape: Shape) -> Question:
    paged = PagedBatch(shape, [(shape.context, 1)] * shape.num_decodes)
    group = shape.num_heads // shape.num_kv_heads
    in_force = decode_blocks(shape.head_dim, group, shape.dtype, shape.device)
    out = torch.empty_like(paged.q)

    def run(sizes: Sizes) -> Tensor:
        for cache in paged.caches:
            blocks = in_force._replace(**sizes)
            for launch in decode_launches(out, paged.q, cache, paged.contexts, paged.workspace, None, blocks):
                launch.run()
        return out

    choices = {
        "split_length": (128, 256, 512),
        "block_n": (32, 64, 128),
        "num_warps": (2, 4, 8),
        "num_stages": (2, 3, 4),
    }
    return Question(decode_key(shape.head_dim, group, shape.dtype), choices, run)


def _prefill(shape: Shape) -> Question:
    paged = PagedBatch(shape, [(shape.prefill_rows, shape.prefill_rows)])
    group = shape.num_heads // shape.num_kv_heads
    in_force = prefill_blocks(shape.head_dim, group, shape.dtype, shape.device)
    out = torch.empty_like(paged.q)

    def run(sizes: Sizes) -> Tensor:
        for cache in paged.caches:
            prefill_launch(out, paged.q, cache, paged.contexts, None, in_force._replace(**sizes)).run()
        return out

    choices = {"block_m": (64, 128), "block_n": (32, 64, 128), "num_warps": (4, 8), "num_stages": (2, 3)}
    return Question(prefill_key(shape.head_dim, group, shape.dtype), choices, run)
