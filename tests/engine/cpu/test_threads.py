"""Fewer threads compute while other work takes processors, and as many as before once it has ended."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
import torch

from engine.cpu.threads import INTERVAL_S, PATIENCE_INTERVALS, STALE_S, AdaptedThreads, ThreadCount, Usage, linux_usage
from engine.hardware import resolve_dtype
from engine.mailbox import Mailbox
from engine.setup import build_core
from kernels.lora import Run, add_batched_lora_
from kernels.workspace import Workspace
from tests.engine.harness import engine_config
from tests.engine.models.tiny import save_tiny


@pytest.fixture(autouse=True)
def _restore_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def counts(threads: ThreadCount, others: Sequence[float]) -> list[int]:
    """Return the number of threads after each second. others: the processors that others use in each second."""
    return [threads.take(1.0, each) for each in others]


def shared(num_threads: int, num_others: int, num_processors: int) -> float:
    """Return the processors that other processes get from a fair scheduler beside our threads, when all are busy."""
    running = num_threads + num_others
    return num_others * min(1.0, num_processors / running)


def settled_counts(threads: ThreadCount, num_others: int, num_processors: int) -> set[int]:
    """Return the numbers of threads that `adapt` arrives at beside a number of other busy threads."""
    seen = []
    for _ in range(4 * PATIENCE_INTERVALS):
        seen += counts(threads, [shared(threads.count, num_others, num_processors)])
    return set(seen[2 * PATIENCE_INTERVALS :])


def test_a_process_that_stays_busy_beside_two_threads_costs_one_of_them_and_its_end_gives_it_back_at_once() -> None:
    threads = ThreadCount(2, 2)
    assert counts(threads, [0.67] * PATIENCE_INTERVALS) == [2] * (PATIENCE_INTERVALS - 1) + [1]
    assert counts(threads, [1.0, 1.0, 0.0]) == [1, 1, 2]


def test_work_that_comes_and_goes_costs_no_thread() -> None:
    assert set(counts(ThreadCount(2, 2), [0.5] * 10)) == {2}
    assert set(counts(ThreadCount(2, 2), [0.9, 0.9, 0.1] * 10)) == {2}


def test_where_every_processor_has_other_work_all_threads_compute() -> None:
    for num_others in (2, 3, 9):
        assert settled_counts(ThreadCount(2, 2), num_others, 2) == {2}
    threads = ThreadCount(2, 2)
    counts(threads, [0.67] * PATIENCE_INTERVALS)
    assert threads.count == 1
    assert settled_counts(threads, 2, 2) == {2}, "a second busy process comes"


@pytest.mark.parametrize("num_others", range(20))
def test_of_many_processors_as_many_threads_remain_as_others_leave(num_others: int) -> None:
    assert settled_counts(ThreadCount(16, 16), num_others, 16) == {16 - num_others if num_others < 16 else 16}


def test_fewer_threads_than_processors_stay_while_there_is_room_beside_them() -> None:
    assert settled_counts(ThreadCount(4, 16), 12, 16) == {4}
    assert settled_counts(ThreadCount(4, 16), 14, 16) == {2}
    assert settled_counts(ThreadCount(4, 16), 16, 16) == {4}


@pytest.mark.parametrize("others", list(itertools.product([0.0, 0.5, 1.0, 3.0], repeat=3)))
def test_the_number_stays_between_one_and_the_most(others: tuple[float, ...]) -> None:
    assert set(counts(ThreadCount(3, 4), others * 4)) <= {1, 2, 3}


class Clocks:
    """A fake of the processor clocks, which tests advance; `adapt` reads them only as often as real time passes."""

    def __init__(self) -> None:
        self.usage = Usage(0.0, 0.0, 0.0)

    def __call__(self) -> Usage:
        return self.usage

    def move(self, elapsed_s: float, own_s: float, others_s: float) -> None:
        now_s, all_s, own = self.usage
        self.usage = Usage(now_s + elapsed_s, all_s + own_s + others_s, own + own_s)


def adapt_threads(clocks: Clocks, threads: AdaptedThreads, elapsed_s: float, others_s: float) -> int:
    clocks.move(elapsed_s, 1.5 * elapsed_s, others_s)
    threads.adapt()
    return torch.get_num_threads()


def test_pytorch_gets_the_number_and_own_work_does_not_count() -> None:
    torch.set_num_threads(2)
    clocks = Clocks()
    threads = AdaptedThreads(2, clocks, 2, interval_s=0.0)
    assert adapt_threads(clocks, threads, 1.0, 0.0) == 2
    assert [adapt_threads(clocks, threads, 1.0, 0.7) for _ in range(PATIENCE_INTERVALS)][-1] == 1


def test_a_time_in_which_nothing_was_computed_decides_nothing() -> None:
    torch.set_num_threads(2)
    clocks = Clocks()
    threads = AdaptedThreads(2, clocks, 2, interval_s=0.0)
    for _ in range(2 * PATIENCE_INTERVALS):
        assert adapt_threads(clocks, threads, 2 * STALE_S, STALE_S) == 2
    assert [adapt_threads(clocks, threads, 1.0, 0.7) for _ in range(PATIENCE_INTERVALS)][-1] == 1


def test_the_clocks_are_read_once_an_interval_however_many_steps_there_are() -> None:
    num_reads = 0

    def usage() -> Usage:
        nonlocal num_reads
        num_reads += 1
        return Usage(time.monotonic(), 0.0, 0.0)

    threads = AdaptedThreads(2, usage, 2)
    start_s = time.monotonic()
    for _ in range(1000):
        threads.adapt()
    assert num_reads <= 2 + (time.monotonic() - start_s) / INTERVAL_S


def test_where_the_system_does_not_tell_the_number_stays() -> None:
    torch.set_num_threads(2)
    AdaptedThreads(2, lambda: None, 2).adapt()
    assert torch.get_num_threads() == 2


def test_linux_tells_what_this_process_used_and_all_did() -> None:
    before = linux_usage()
    assert before is not None
    while time.process_time() < before.own_s + 0.2:
        pass
    after = linux_usage()
    assert after is not None
    assert after.own_s - before.own_s >= 0.2
    assert after.all_s - before.all_s >= 0.1  # in hundredths of a second for each processor


@pytest.mark.parametrize(("asked", "adapts"), [(0, True), (1, False)])
def test_a_number_that_was_asked_for_is_kept(asked: int, adapts: bool, tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "model")
    config = msgspec.structs.replace(engine_config(tmp_path / "model", tmp_path / "store"), num_threads=asked)
    mailbox = Mailbox()
    core, _ = build_core(config, mailbox)
    assert (core._runner._path._threads is not None) == adapts  # type: ignore[attr-defined]
    core.close()
    mailbox.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_rows", [1, 3, 16, 65])
@pytest.mark.parametrize("rank", [4, 16, 64])
def test_the_number_changes_no_bit_of_an_adapters_delta(rank: int, num_rows: int, dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16 != resolve_dtype("auto", torch.device("cpu")):
        pytest.skip("this processor does not multiply bfloat16, and is not asked to unless somebody insists")
    generator = torch.Generator().manual_seed(rank + num_rows)
    num_adapters, num_in, num_out = 3, 576, 1536
    x = torch.randn(num_adapters * num_rows, num_in, generator=generator).to(dtype)
    a = torch.randn(num_adapters, rank, num_in, generator=generator).to(dtype)
    b = torch.randn(num_adapters, rank, num_out, generator=generator).to(dtype)
    deltas = []
    for count in (1, 2):
        torch.set_num_threads(count)
        out = torch.zeros(num_adapters * num_rows, num_out, dtype=dtype)
        run = Run(torch.arange(len(x)), a, (b,), None)
        add_batched_lora_([out], x, [run], None, None, Workspace(dtype, torch.device("cpu")))
        deltas.append(out)
    assert torch.equal(*deltas)
