"""The time of work on a GPU, and the rates of that GPU. In a dry run nothing is timed."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from kernels.bench.floors import Rates

REPEATS = 20
STREAMED_BYTES = 2 << 30  # of one tensor: far more than caches hold, no more than a launch reaches with 32-bit offsets
PRODUCT_SIZE = 8192


class Stream(NamedTuple):
    """A run that only moves memory."""

    name: str
    run: Callable[[], object]
    num_bytes: int
    """Bytes that one run reads and writes."""


def streams(source: Tensor, target: Tensor) -> list[Stream]:
    """Return runs that do nothing but move memory: a copy by the driver, an elementwise kernel, a reduction.

    target: a tensor like source, overwritten.
    """
    both = source.nbytes + target.nbytes
    return [
        Stream("memcpy", lambda: target.copy_(source), both),
        Stream("scale", lambda: torch.mul(source, 3, out=target), both),
        Stream("sum", lambda: torch.sum(source), source.nbytes),
    ]


class Clock(Protocol):
    """A clock that measures how long work takes on a device."""

    def seconds(self, run: Callable[[], object]) -> float | None:
        """Return the median seconds of one run; None where nothing is timed, though the run takes place."""

    def rates(self) -> Rates | None:
        """Return the rates of the device; None where nothing is timed."""


class CudaClock:
    """A clock of work on a GPU. Runs are captured in a CUDA graph, so that the host's time is not measured."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def seconds(self, run: Callable[[], object]) -> float:
        """Return the median seconds of one run, over replays of its graph."""
        run()  # compiles
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        graph.replay()
        return median(self._replay_s(graph) for _ in range(REPEATS))

    @staticmethod
    def _replay_s(graph: torch.cuda.CUDAGraph) -> float:
        started, ended = (torch.Event("cuda", enable_timing=True) for _ in range(2))
        started.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        return started.elapsed_time(ended) / 1000

    def rates(self) -> Rates:
        """Return the bandwidth of the fastest of `streams`, and the rate of a large product in bf16.

        The fastest is taken because none of them is the memory's own: a copy by the driver moves less than a kernel
        that streams weights, and a yardstick that work can beat flatters all that is held against it.
        """
        source = torch.randn(STREAMED_BYTES // 4, device=self._device)
        rates = {s.name: s.num_bytes / self.seconds(s.run) for s in streams(source, torch.empty_like(source))}
        fastest = max(rates, key=lambda name: rates[name])
        a = torch.randn(PRODUCT_SIZE, PRODUCT_SIZE, dtype=torch.bfloat16, device=self._device)
        product = torch.empty_like(a)
        product_s = self.seconds(lambda: torch.mm(a, a, out=product))
        return Rates(rates[fastest], 2 * PRODUCT_SIZE**3 / product_s, fastest)


class NoClock:
    """A clock that runs without timing."""

    def seconds(self, run: Callable[[], object]) -> None:
        """Run once without timing, and return None."""
        run()

    def rates(self) -> None:
        """Return None: this clock measures no rates either."""
