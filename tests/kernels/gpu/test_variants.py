"""No argument that differs between steps makes Triton compile a kernel again: requests would wait for it.

Triton compiles a kernel once for each key that it forms from the arguments' types, from which integers are 1 or
multiples of 16, and from which addresses are. The key needs no GPU, so Triton is asked for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction, create_function_from_signature

from kernels.gpu.decode_attention import decode_launches
from kernels.gpu.launch import Launch
from kernels.gpu.lora import Shrink, activate_launch, expand_launch
from kernels.gpu.norm import norm_launch
from kernels.gpu.paged_contexts import PagedContexts
from kernels.gpu.penalties import TokenPairs, penalize_launch
from kernels.gpu.prefill_attention import prefill_launch
from kernels.gpu.query_tiles import QueryTiles
from kernels.gpu.rope_kv import rope_kv_launch
from kernels.gpu.sampling import BEST, SEARCH_BLOCK, SamplingRows, sample_launch
from kernels.gpu.tuning import queries_at_once
from kernels.gpu.work_list import build_work_list
from tests.kernels.gpu.adapters import Adapters
from tests.kernels.gpu.compare import DEVICE, poisoned, randn

ODD_SIZES = (1, 2, 15, 16, 17, 64)


def key(launch: Launch) -> str:
    """Return the key under which Triton caches the compiled kernel of a launch."""
    kernel = launch.kernel
    if isinstance(kernel, InterpretedFunction):
        kernel = JITFunction(kernel.fn, **kernel.kwargs)
    backend = CUDABackend(GPUTarget("cuda", 90, 32))
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    _, specialization, _ = bind(**launch.arguments)
    return str(specialization)


def assert_one_key(launches: Iterable[Launch]) -> None:
    assert len({key(launch) for launch in launches}) == 1


def staged(count: int, size: int, dtype: torch.dtype) -> Iterator[Tensor]:
    """Yield rows of one copy from the host, whose addresses are multiples only of the elements' size."""
    return iter(torch.ones(count, size, dtype=dtype, device=DEVICE))


def contexts(num_sequences: int, max_blocks: int) -> PagedContexts:
    staging = torch.ones(2 + num_sequences * (max_blocks + 2), dtype=torch.int32, device=DEVICE)
    _, tables, lengths, starts = staging.split([1, num_sequences * max_blocks, num_sequences, num_sequences + 1])
    return PagedContexts(tables.view(-1, max_blocks), lengths, starts, 16 * max_blocks, 16)


@pytest.mark.parametrize("num_rows", [1, 3])
def test_attention_over_block_tables_of_any_width(num_rows: int) -> None:
    q, cache = randn(num_rows, 4, 64), randn(2, 2, 32, 64)
    tables = [contexts(num_rows, max_blocks) for max_blocks in ODD_SIZES]
    decodes = [decode_launches(q, q, cache, each, poisoned(1 << 16), None) for each in tables]
    for launches in zip(*decodes, strict=True):
        assert_one_key(launches)
    at_once = queries_at_once(64, 2, q.dtype, DEVICE)
    lists = [QueryTiles([*staged(2, 2 * size, torch.int32)][1].view(-1, 2), at_once) for size in ODD_SIZES]
    tiled = [each._replace(tiles=tiles) for each, tiles in zip(tables, lists, strict=True)]
    assert_one_key(prefill_launch(q, q, cache, each, None) for each in tiled)


def test_rows_of_any_number() -> None:
    """The rows are those of adapters, norms, and the operations before attention."""
    adapters = Adapters([[8]], 64, (32,), torch.float16)
    loras, norms, ropes = [], [], []
    for num_rows in ODD_SIZES:
        x, out = randn(num_rows, 64, dtype=torch.float16), randn(num_rows, 32, dtype=torch.float16)
        rows, slots, positions = staged(3, num_rows, torch.int64)
        work = build_work_list(slots - 1, 1, 16)
        work = work._replace(rows=rows.int())
        shrink = Shrink.of(x, adapters.chunk_table(work), 8, work, poisoned(16 * num_rows))
        loras.append((shrink.launch(), expand_launch(out, (32,), shrink), activate_launch(out, x, shrink)))
        norms.append(norm_launch(x, x, x, x[0], 1e-5))
        qkv, angles, cache = randn(num_rows, 3, 64), randn(9, 32), randn(2, 1, 16, 64)
        ropes.append(rope_kv_launch(qkv, positions, angles, angles, cache, slots, None))
    for launches in (*zip(*loras, strict=True), norms, ropes):
        assert_one_key(launches)


def test_sampling_rows_and_penalized_pairs_of_any_number() -> None:
    samples, penalties = [], []
    for num_rows in ODD_SIZES:
        logits = randn(num_rows, 48)
        temperature, top_p, min_p, top_k = staged(4, num_rows, torch.float32)
        token_ids, seeds, positions = staged(3, num_rows, torch.int64)
        options = SamplingRows(temperature, top_k.int(), top_p, min_p, seeds, positions)
        samples.append(sample_launch(token_ids, logits, options, randn(num_rows, BEST * SEARCH_BLOCK)))
        rows, tokens, counts = staged(3, num_rows, torch.int32)
        _, *factors = staged(4, num_rows, torch.float32)
        penalties.append(penalize_launch(logits, TokenPairs(rows, tokens, counts, temperature), *factors))
    for launches in (samples, penalties):
        assert_one_key(launches)
