"""The least that operations can take: bytes that have to be moved, operations that have to be computed. Arithmetic.

Bytes count what has to be read from memory and written to it once; what one kernel hands to the next through the cache,
such as the sums between shrink and expand, is not counted, nor are indexes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Work(NamedTuple):
    """The bytes that some operations have to move, and the number of multiplications and additions in them."""

    num_bytes: int
    num_operations: int

    def times(self, number: int) -> Work:
        """Return the work of computing these operations `number` times."""
        return Work(self.num_bytes * number, self.num_operations * number)


class Rates(NamedTuple):
    """The measured rates of one device, in bytes and in operations per second."""

    bytes_per_s: float
    operations_per_s: float
    measured_by: str = ""
    """The name of the stream that reached bytes_per_s."""


class Floor(NamedTuple):
    """The least seconds that some work can take."""

    seconds: float
    is_memory: bool
    """True if moving the bytes takes at least as long as computing the operations."""


def floor(work: Work, rates: Rates) -> Floor:
    """Return the floor of work: the longer one of moving its bytes and computing its operations, at these rates."""
    memory_s = work.num_bytes / rates.bytes_per_s
    compute_s = work.num_operations / rates.operations_per_s
    return Floor(max(memory_s, compute_s), memory_s >= compute_s)


def lora_work(adapters: Sequence[tuple[int, int]], in_features: int, sizes: Sequence[int], width: int) -> Work:
    """Return the work of adapters on projections with one input: weights and x are read once, out is read and written.

    adapters: (rows, rank) of each distinct one; sizes: the outputs of each projection; width: bytes of an element.
    """
    of_a_rank = len(sizes) * in_features + sum(sizes)
    weights = sum(rank for _, rank in adapters) * of_a_rank
    activations = sum(rows for rows, _ in adapters) * (in_features + 2 * sum(sizes))
    return Work((weights + activations) * width, 2 * sum(rows * rank for rows, rank in adapters) * of_a_rank)


def attention_work(
    lengths: Sequence[tuple[int, int]], num_heads: int, num_kv_heads: int, head_dim: int, width: int
) -> Work:
    """Return the work of attention for sequences with these lengths: (context, queries) of each.

    Keys and values are read once; queries and outputs, and the products of the pairs that causality leaves, are
    counted. width: bytes of an element.
    """
    contexts = sum(context for context, _ in lengths)
    queries = sum(count for _, count in lengths)
    pairs = sum(count * context - count * (count - 1) // 2 for context, count in lengths)
    elements = 2 * contexts * num_kv_heads * head_dim + 2 * queries * num_heads * head_dim
    return Work(elements * width, 4 * pairs * num_heads * head_dim)


def elementwise_work(num_elements_moved: int, width: int) -> Work:
    """Return the work of reading and writing this many elements in all, of `width` bytes each.

    The operations for each element are negligible, and counted as none.
    """
    return Work(num_elements_moved * width, 0)
