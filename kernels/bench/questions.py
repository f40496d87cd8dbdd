"""The questions that `kernels.tune` asks the clock: for each kernel, the sizes of blocks to choose from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.bench.lora import GATE_UP, SMALLEST_SPLIT, Adapters, LoraBatch
from kernels.bench.paged import PagedBatch
from kernels.bench.shapes import Shape
from kernels.gpu.decode_attention import decode_launches
from kernels.gpu.launch import Launch
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
    """A question to the clock: which sizes of blocks are the fastest for one kernel and shape."""

    key: str
    """The key in the table of `kernels.gpu.tuning`."""
    choices: Mapping[str, Sequence[int]]
    """The choices of each field."""
    launches: Callable[[Sizes], Iterable[Launch]]
    """The function that returns the launches with some sizes; sizes that are not given stay as they are."""
    result: Tensor
    """The tensor that the launches write to, which is not zero afterwards."""

    def sizes(self) -> Iterator[dict[str, int]]:
        """Yield every combination of the choices of all fields."""
        for values in product(*self.choices.values()):
            yield dict(zip(self.choices, values, strict=True))

    def run(self, sizes: Sizes) -> Tensor:
        """Run the launches with these sizes, and return their results."""
        self.result.zero_()
        for launch in self.launches(sizes):
            launch.run()
        return self.result


def questions(shape: Shape) -> Iterator[Question]:
    """Yield the questions of all kernels; a key that several groups of projections share comes once."""
    asked = set()
    for question in _lora(shape):
        if question.key not in asked:
            asked.add(question.key)
            yield question
    yield _decode_question(shape)
    yield _prefill_question(shape)


def _lora(shape: Shape) -> Iterator[Question]:
    """Yield the questions of the adapters' kernels.

    The split of sums is asked for decodes alone, because prefills must use the same one. The other sizes are asked for
    decodes, for a larger batch and for prefills.
    """
    adapters = Adapters(shape, [shape.ranks[0]] * shape.num_adapters)
    decodes = LoraBatch(adapters, torch.arange(shape.num_decodes, device=shape.device) % shape.num_adapters)
    many = LoraBatch(adapters, torch.arange(4 * shape.num_decodes, device=shape.device) % shape.num_adapters)
    rows = torch.arange(4 * shape.prefill_rows, device=shape.device)
    prefills = LoraBatch(adapters, rows * shape.num_adapters // len(rows))
    for group in range(len(shape.groups)):
        yield _sums_question(decodes, group)
        for batch in (decodes, many, prefills):
            yield _shrink_question(batch, group)
            yield _expand_question(batch, group)


def _sums_question(batch: LoraBatch, group: int) -> Question:
    shape = batch.adapters.shape
    in_features, _ = shape.groups[group]
    in_force = shrink_sums(in_features, shape.dtype, shape.device)
    choices = {"split_length": (SMALLEST_SPLIT, 1024, 2048), "block_k": (64, 128, 256)}
    launches = _of_layers(batch, group, lambda sizes: {"sums": in_force._replace(**sizes)})
    return Question(shrink_sums_key(in_features, shape.dtype), choices, launches, batch.result(group))


def _shrink_question(batch: LoraBatch, group: int) -> Question:
    shape, block_m = batch.adapters.shape, lora_block_m(len(batch.slots))
    in_features, _ = shape.groups[group]
    in_force = shrink_blocks(in_features, block_m, shape.dtype, shape.device)
    choices = {"num_warps": (2, 4, 8), "num_stages": (3, 4, 6)}
    launches = _of_layers(batch, group, lambda sizes: {"shrink_blocks": in_force._replace(**sizes)})
    return Question(shrink_key(in_features, block_m, shape.dtype), choices, launches, batch.result(group))


def _expand_question(batch: LoraBatch, group: int) -> Question:
    shape, block_m = batch.adapters.shape, lora_block_m(len(batch.slots))
    _, sizes = shape.groups[group]
    if group == GATE_UP:
        key = activate_key(sizes[0], block_m, shape.dtype)
        in_force = activate_blocks(sizes[0], block_m, shape.dtype, shape.device)
    else:
        key = expand_key(sum(sizes), block_m, shape.dtype)
        in_force = expand_blocks(sum(sizes), block_m, shape.dtype, shape.device)
    choices: dict[str, Sequence[int]] = {"block_n": (256, 512, 1024), "num_warps": (1, 2, 4), "num_stages": (1, 3)}
    if block_m > 2:
        choices = {"block_n": (64, 128), "tiles": (2, 4, 8), "num_warps": (2, 4, 8), "num_stages": (1, 2, 3)}
    launches = _of_layers(batch, group, lambda sizes: {"expand_blocks": in_force._replace(**sizes)})
    return Question(key, choices, launches, batch.result(group))


def _of_layers(
    batch: LoraBatch, group: int, blocks: Callable[[Sizes], dict[str, Any]]
) -> Callable[[Sizes], Iterator[Launch]]:
    """Return a function that yields all layers' launches of one group, with other sizes for one part of its blocks."""

    def launches(sizes: Sizes) -> Iterator[Launch]:
        for layer in range(batch.adapters.shape.num_layers):
            yield from batch.launches(layer, group, **blocks(sizes))

    return launches


def _decode_question(shape: Shape) -> Question:
    paged = PagedBatch(shape, [(shape.context, 1)] * shape.num_decodes)
    group = shape.num_heads // shape.num_kv_heads
    in_force = decode_blocks(shape.head_dim, group, shape.dtype, shape.device)
    out = torch.empty_like(paged.q)

    def launches(sizes: Sizes) -> Iterator[Launch]:
        for cache in paged.caches:
            yield from decode_launches(
                out, paged.q, cache, paged.contexts, paged.workspace, None, blocks=in_force._replace(**sizes)
            )

    choices = {"split_length": (256, 512), "block_n": (32, 64, 128), "num_warps": (4, 8), "num_stages": (2, 3, 4)}
    return Question(decode_key(shape.head_dim, group, shape.dtype), choices, launches, out)


def _prefill_question(shape: Shape) -> Question:
    num_rows = 4 * shape.prefill_rows
    paged = PagedBatch(shape, [(num_rows, num_rows)])
    group = shape.num_heads // shape.num_kv_heads
    in_force = prefill_blocks(shape.head_dim, group, shape.dtype, shape.device)
    choices = {"block_m": (64, 128, 256), "block_n": (32, 64, 128), "num_warps": (4, 8), "num_stages": (2, 3, 4)}
    contexts = {block_m: paged.tiled(block_m // group) for block_m in {*choices["block_m"], in_force.block_m}}

    def launches(sizes: Sizes) -> Iterator[Launch]:
        blocks = in_force._replace(**sizes)
        for cache in paged.caches:
            yield prefill_launch(paged.out, paged.q, cache, contexts[blocks.block_m], None, blocks=blocks)

    return Question(prefill_key(shape.head_dim, group, shape.dtype), choices, launches, paged.out)
