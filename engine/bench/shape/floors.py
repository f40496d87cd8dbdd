"""The least that a step can take: bytes that must be read once, products that must be computed. Arithmetic alone."""

from __future__ import annotations

from collections.abc import Sequence

from engine.config import PROJECTIONS, ModelConfig
from kernels.bench.floors import Rates, Work


def matrix_elements(config: ModelConfig) -> int:
    """Return the number of elements of all matrices that every row is multiplied with, the head aside."""
    return config.num_layers * sum(width * height for width, height in map(config.projection_shape, PROJECTIONS))


def adapter_elements(config: ModelConfig, rank: int) -> int:
    """Return the number of elements of one adapter on all projections."""
    return config.num_layers * rank * sum(sum(config.projection_shape(name)) for name in PROJECTIONS)


def decode_work(config: ModelConfig, contexts: Sequence[int], ranks: Sequence[int], width: int) -> Work:
    """Return the work of a step with one token for each of these contexts.

    ranks: the ranks of the distinct adapters in the step; width: the bytes of an element.
    Bytes: the matrices and the head, the keys and values of all contexts, the adapters. Operations: the products with
    the matrices and the head, which take far less time than the bytes.
    """
    head = config.vocab_size * config.hidden_size
    cached = sum(contexts) * 2 * config.num_layers * config.num_kv_heads * config.head_dim
    adapters = sum(adapter_elements(config, rank) for rank in ranks)
    operations = 2 * len(contexts) * (matrix_elements(config) + head)
    return Work((matrix_elements(config) + head + cached + adapters) * width, operations)


def share_left_by_adapters(
    config: ModelConfig, step_s: float, num_more: float, rank: int, width: int, rates: Rates
) -> float:
    """Return the share of throughput that remains if each step of step_s reads num_more more adapters.

    rank: the rank of each adapter. width: bytes of a number.
    """
    more_s = num_more * adapter_elements(config, rank) * width / rates.bytes_per_s
    return step_s / (step_s + more_s)


def prefill_work(config: ModelConfig, chunks: Sequence[int], ranks: Sequence[int], width: int) -> Work:
    """Return the work of whole prompts of these lengths.

    Each prompt has an adapter of its own or, where ranks is empty, none; one token is chosen for each.

    Operations: every token through the matrices and its adapter, every pair of positions that causality leaves through
    attention, the last token of each prompt through the head. width: bytes of a number.
    """
    num_tokens = sum(chunks)
    pairs = sum(length * (length + 1) // 2 for length in chunks)
    head = config.vocab_size * config.hidden_size
    operations = 2 * num_tokens * matrix_elements(config)
    operations += 4 * pairs * config.num_layers * config.num_heads * config.head_dim
    operations += 2 * len(chunks) * head
    operations += sum(
        2 * length * adapter_elements(config, rank)
        for length, rank in zip(chunks, ranks or [0] * len(chunks), strict=True)
    )
    adapters = sum(adapter_elements(config, rank) for rank in ranks)
    return Work((matrix_elements(config) + head + adapters) * width, operations)
