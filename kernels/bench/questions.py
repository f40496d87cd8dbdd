"""What `kernels.tune` asks the clock: for each kernel the sizes of blocks that there are to choose from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.bench.lora import Adapters, LoraBatch
from kernels.bench.paged import PagedBatch
from kernels.bench.shapes import Shape
from kernels.gpu.decode_attention import decode_launches
from kernels.gpu.prefill_attention import prefill_launch
from kernels.gpu.tuning import (
    decode_blocks,
    decode_key,
    expand_key,
    lora_block_m,
    lora_blocks,
    prefill_blocks,
    prefill_key,
    shrink_key,
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
    decodes = LoraBatch(adapters, torch.arange(shape.num_adapters, device=shape.device))
    rows = torch.arange(shape.prefill_rows, device=shape.device)
    prefills = LoraBatch(adapters, rows * shape.num_adapters // len(rows))
    for group, (in_features, sizes) in enumerate(shape.groups):
        splits = {"split_length": (512, 1024, 2048, 4096), "block_k": (64, 128, 256)}
        key = shrink_sums_key(in_features, shape.dtype)
        yield Question(key, splits, _shrink_and_expand(decodes, group, "sums"))
        for batch in (decodes, prefills):
            block_m = lora_block_m(len(batch.slots))
            shrink = {"block_r": (16, 32), "num_warps": (2, 4, 8), "num_stages": (2, 3, 4, 5)}
            key = shrink_key(in_features, block_m, shape.dtype)
            yield Question(key, shrink, _shrink_and_expand(batch, group, "shrink"))
            expand = {"block_n": (64, 128, 256, 512), "num_warps": (2, 4, 8), "num_stages": (1, 2, 3)}
            key = expand_key(sum(sizes), block_m, shape.dtype)
            yield Question(key, expand, _shrink_and_expand(batch, group, "expand"))


def _shrink_and_expand(batch: LoraBatch, group: int, part: str) -> Callable[[Sizes], Tensor]:
    """All layers' launches of one group, with other sizes for one part of its blocks."""
    shape = batch.adapters.shape
    in_features, projections = shape.groups[group]
    block_m = lora_block_m(len(batch.slots))

    def run(sizes: Sizes) -> Tensor:
        in_force = lora_blocks(in_features, sum(projections), block_m, shape.dtype, shape.device)
        blocks = in_force._replace(**{part: getattr(in_force, part)._replace(**sizes)})
        batch.outs[group].zero_()
        for layer in range(shape.num_layers):
            for launch in batch.launches(layer, group, blocks):
                launch.run()
        return batch.outs[group]

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
