"""Attention over a paged cache equals its definition: every head size and group, any lengths, prefixes and windows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from kernels.gpu.attention import PagedContexts, paged_attention_, paged_attention_reference, workspace_elements
from kernels.gpu.query_tiles import max_tiles, query_tiles
from kernels.gpu.tuning import queries_at_once
from tests.kernels.gpu.compare import DEVICE, DTYPES, assert_near, poisoned, randn

HEAD_DIMS = [64, 80, 96, 128, 256]
GROUPS = [1, 2, 3, 4, 5, 6, 7, 8]
# Every group in one width: in fp32 where kernels are interpreted, which is slow; in bf16 on a GPU, where each has to be
# compiled. Some groups in the others.
ALL_GROUPS = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
WIDTHS = [(group, dtype) for dtype in DTYPES for group in GROUPS if dtype == ALL_GROUPS or group == 4]
WIDTHS += [(group, dtype) for dtype in DTYPES for group in (1, 7) if DEVICE.type == "cuda" and dtype != ALL_GROUPS]
SHAPES = [
    (head_dim, group, dtype)
    for head_dim in HEAD_DIMS
    for group, dtype in WIDTHS
    if DEVICE.type == "cuda" or head_dim in (64, 128) or group in (1, 4, 7)
]
DECODES = [(1, 1), (17, 1), (0, 1), (300, 1)]  # (context, queries) of each sequence
CHUNKS = [(1, 1), (7, 7), (40, 3), (0, 0), (70, 33)]


class CachedSequences:
    """Sequences given as (context, queries), in blocks spread over a cache that holds NaN elsewhere."""

    def __init__(
        self, shape: tuple[int, int, int], lengths: Sequence[tuple[int, int]], dtype: torch.dtype, block_size: int = 16
    ) -> None:
        num_heads, num_kv_heads, head_dim = shape
        contexts, queries = zip(*lengths, strict=True)
        max_blocks = -(-max(contexts) // block_size) + 1
        num_blocks = len(lengths) * max_blocks
        tables = torch.randperm(num_blocks).view(len(lengths), max_blocks)
        self.cache = poisoned(2, num_kv_heads, num_blocks * block_size, head_dim, dtype=dtype)
        for table, context in zip(tables, contexts, strict=True):
            slots = (table[:, None] * block_size + torch.arange(block_size)).flatten()[:context].to(DEVICE)
            self.cache[:, :, slots] = randn(2, num_kv_heads, context, head_dim, dtype=dtype)
        starts = torch.tensor([0, *queries]).cumsum(0)
        self.q = randn(int(starts[-1]), num_heads + 2 * num_kv_heads, head_dim, dtype=dtype)[:, :num_heads]
        self.contexts = PagedContexts(
            tables.int().to(DEVICE),
            torch.tensor(contexts, dtype=torch.int32, device=DEVICE),
            starts.int().to(DEVICE),
            max(contexts),
            block_size,
        )
        self.at_once = queries_at_once(head_dim, num_heads // num_kv_heads, dtype, DEVICE)
        if max(queries) > 1:
            self.contexts = self.tiled(self.contexts)

    def tiled(self, contexts: PagedContexts, num_tiles: int | None = None) -> PagedContexts:
        _, lengths, starts, *_ = contexts
        return contexts._replace(tiles=query_tiles(lengths, starts, self.at_once, num_tiles=num_tiles))

    def attend(self, window: int | None = None, contexts: PagedContexts | None = None, softcap: float = 0.0) -> Tensor:
        contexts = contexts or self.contexts
        shape = self.q.shape[1], self.cache.shape[1], self.q.shape[2]
        workspace = poisoned(workspace_elements(len(self.q), *shape, contexts.max_context_len, self.q.dtype, DEVICE))
        out = poisoned(*self.q.shape, dtype=self.q.dtype)
        paged_attention_(out, self.q, self.cache, contexts, workspace, window, softcap)
        return out.flatten(1)

    def expected(self, window: int | None = None, softcap: float = 0.0) -> Tensor:
        return paged_attention_reference(self.q, self.cache, self.contexts, window, softcap)


@pytest.mark.parametrize(("head_dim", "group", "dtype"), SHAPES, ids=str)
@pytest.mark.parametrize("lengths", [DECODES, CHUNKS], ids=["decode", "prefill"])
def test_attention_equals_its_definition_for_every_head_size_and_group(
    lengths: list[tuple[int, int]], head_dim: int, group: int, dtype: torch.dtype
) -> None:
    num_kv_heads = 2 if group < 4 else 1
    cached = CachedSequences((group * num_kv_heads, num_kv_heads, head_dim), lengths, dtype)
    assert_near(cached.attend(), cached.expected())


@pytest.mark.parametrize("window", [1, 16, 100, 257])
@pytest.mark.parametrize("lengths", [[*DECODES, (600, 1)], [*CHUNKS, (300, 50)]], ids=["decode", "prefill"])
def test_attention_with_a_sliding_window_equals_its_definition(lengths: list[tuple[int, int]], window: int) -> None:
    cached = CachedSequences((6, 2, 64), lengths, torch.float32)
    assert_near(cached.attend(window), cached.expected(window))


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("lengths", [DECODES, CHUNKS], ids=["decode", "prefill"])
def test_attention_with_bounded_scores_equals_its_definition(
    lengths: list[tuple[int, int]], window: int | None
) -> None:
    cached = CachedSequences((6, 2, 64), lengths, torch.float32)
    bounded = cached.attend(window, softcap=0.5)
    assert_near(bounded, cached.expected(window, softcap=0.5))
    assert not torch.allclose(bounded, cached.attend(window), atol=1e-3)


@pytest.mark.parametrize("context", [15, 16, 255, 256, 257, 512, 2049, 4096, 8192])
def test_contexts_around_the_borders_of_splits_equal_the_definition(context: int) -> None:
    cached = CachedSequences((2, 1, 64), [(context, 1), (1, 1)], torch.float32)
    assert_near(cached.attend(), cached.expected())


@pytest.mark.parametrize("block_size", [1, 8, 32])
@pytest.mark.parametrize("lengths", [DECODES, CHUNKS], ids=["decode", "prefill"])
def test_attention_equals_its_definition_for_every_block_size(lengths: list[tuple[int, int]], block_size: int) -> None:
    cached = CachedSequences((4, 2, 64), lengths, torch.float32, block_size)
    assert_near(cached.attend(), cached.expected())


def test_a_long_chunk_over_a_long_prefix_equals_the_definition(full: bool) -> None:
    """There are several tiles of 16 queries and several of 32 positions, and the last ones are not full."""
    lengths = [(8192, 1000), (1000, 1000)] if full else [(300, 35), (40, 40)]
    cached = CachedSequences((8, 2, 64), lengths, torch.float32)
    assert_near(cached.attend(), cached.expected())


@pytest.mark.parametrize("num_tiles", [None, 0, 3])
def test_a_batch_without_sequences_is_computed(num_tiles: int | None) -> None:
    cached = CachedSequences((4, 2, 64), [(3, 1)], torch.float32)
    tables, lengths, starts, *_ = cached.contexts
    cached.q = cached.q[:0]
    none = PagedContexts(tables[:0], lengths[:0], starts[:1], 16, 16)
    if num_tiles is not None:
        none = cached.tiled(none, num_tiles)
    assert cached.attend(contexts=none).shape == (0, 256)


def test_chunks_have_the_same_bits_alone_and_among_many_and_rows_of_no_tile_are_left_alone() -> None:
    """There are sequences without queries in between, more tiles than queries, and rows before and behind all tiles."""
    lengths = [(90, 40), (0, 0), (33, 33), (300, 20), (5, 1), (0, 0)]
    cached = CachedSequences((8, 2, 64), lengths, torch.float32)
    tables, contexts, starts, *_ = cached.contexts
    together = cached.attend()
    assert_near(together, cached.expected())
    before, behind = randn(5, 8, 64), randn(3, 8, 64)
    cached.q = torch.cat((before, cached.q, behind))
    padded = cached.contexts._replace(query_starts=starts + 5)
    num_tiles = 9 + max_tiles(sum(queries for _, queries in lengths), len(lengths), cached.at_once)
    ours = cached.attend(contexts=cached.tiled(padded, num_tiles))
    assert torch.equal(ours[5:-3], together)
    assert ours[:5].isnan().all() and ours[-3:].isnan().all()
    for b, (_, queries) in enumerate(lengths):
        one = PagedContexts(tables[b : b + 1], contexts[b : b + 1], starts[b : b + 2] + 5, 300, 16)
        first = 5 + int(starts[b])
        alone = cached.attend(contexts=cached.tiled(one))
        assert torch.equal(alone[first : first + queries], ours[first : first + queries])


def test_tiles_of_another_kernel_are_refused() -> None:
    cached = CachedSequences((4, 2, 64), CHUNKS, torch.float32)
    cached.at_once *= 2
    with pytest.raises(ValueError, match=f"tiles of {cached.at_once} queries"):
        cached.attend(contexts=cached.tiled(cached.contexts))


def test_a_decode_has_the_same_bits_alone_and_under_any_bound() -> None:
    """A decode's splits are counted from its own start, whatever the batch and the context that the grid allows."""
    cached = CachedSequences((4, 2, 64), [(900, 1), (5, 1), (300, 1)], torch.float32)
    together = cached.attend()
    assert torch.equal(cached.attend(contexts=cached.contexts._replace(max_context_len=4096)), together)
    tables, lengths, starts, *_ = cached.contexts
    cached.q = cached.q[2:]
    alone = PagedContexts(tables[2:], lengths[2:], starts[:2], 300, 16)
    assert torch.equal(cached.attend(contexts=alone), together[2:])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:All-NaN:RuntimeWarning")  # interpreter
@pytest.mark.parametrize("lengths", [DECODES, CHUNKS], ids=["decode", "prefill"])
def test_a_query_that_is_no_number_leaves_no_trace_in_others(lengths: list[tuple[int, int]]) -> None:
    cached = CachedSequences((4, 2, 64), lengths, torch.float32)
    expected = cached.attend()
    cached.q[-1, 0] = torch.nan
    ours = cached.attend()
    assert not ours[-1, :64].isfinite().any()
    assert torch.equal(ours[-1, 64:], expected[-1, 64:])
    assert torch.equal(ours[:-1], expected[:-1])


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
@pytest.mark.parametrize("lengths", [[(1024, 1)] * 64, [(8192, 1)] * 8, [(2048, 2048), (4096, 512)]], ids=len)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention_equals_its_definition_at_the_targets_shapes(
    dtype: torch.dtype, lengths: list[tuple[int, int]]
) -> None:
    cached = CachedSequences((32, 8, 128), lengths, dtype)
    assert_near(cached.attend(), cached.expected())
