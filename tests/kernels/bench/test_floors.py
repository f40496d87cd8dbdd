"""Floors count the bytes and operations that they name, and are the longer of moving bytes and computing."""

from __future__ import annotations

import pytest

from kernels.bench.floors import Rates, Work, attention_work, elementwise_work, floor, lora_work

H100 = Rates(3.35e12, 989e12)


def test_a_floor_is_the_longer_of_bytes_and_operations() -> None:
    assert floor(Work(3_350_000, 0), H100) == pytest.approx((1e-6, True))
    assert floor(Work(0, 989_000_000), H100) == pytest.approx((1e-6, False))
    assert floor(Work(3_350_000, 2 * 989_000_000), H100) == pytest.approx((2e-6, False))


def test_an_adapter_of_rank_16_on_all_of_llama_8b_is_84_megabytes() -> None:
    """The work of an adapter without any row is to read the adapter's weights."""
    groups = [(4096, (4096, 1024, 1024)), (4096, (4096,)), (4096, (14336, 14336)), (14336, (4096,))]
    layer = [lora_work([(0, 16)], width, sizes, 2) for width, sizes in groups]
    assert 32 * sum(work.num_bytes for work in layer) == 83_886_080


def test_rows_of_an_adapter_read_x_and_update_out() -> None:
    alone, three = (lora_work([(rows, 4)], 10, (6, 2), 2) for rows in (0, 3))
    assert three.num_bytes - alone.num_bytes == 3 * (10 + 2 * 8) * 2
    assert three.num_operations == 3 * (2 * 2 * 10 * 4 + 2 * 4 * 8)


def test_a_decode_reads_its_context_once() -> None:
    """64 sequences of 1,024 positions with 8 KV heads of 128 in bf16 hold 268 MB."""
    work = attention_work([(1024, 1)] * 64, 32, 8, 128, 2)
    assert work.num_bytes == 2 * 64 * 1024 * 8 * 128 * 2 + 2 * 64 * 32 * 128 * 2
    assert work.num_operations == 4 * 64 * 1024 * 32 * 128


@pytest.mark.parametrize(("context", "queries"), [(1, 1), (5, 5), (9, 4)])
def test_causality_leaves_the_pairs_that_it_leaves(context: int, queries: int) -> None:
    pairs = sum(position + 1 for position in range(context - queries, context))
    assert attention_work([(context, queries)], 1, 1, 1, 2).num_operations == 4 * pairs


def test_elements_take_their_width() -> None:
    assert elementwise_work(10, 2).times(3) == Work(60, 0)
