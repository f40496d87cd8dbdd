"""How long work takes on a GPU, and what that GPU can do. In a dry run nothing is timed."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Protocol

import torch

from kernels.bench.floors import Rates

REPEATS = 20
COPIED_BYTES = 1 << 30
PRODUCT_SIZE = 8192


class Clock(Protocol):
    def seconds(self, run: Callable[[], object]) -> float | None:
        """Of one run, the median; None where nothing is timed, though it runs."""

    def rates(self) -> Rates | None: ...


class CudaClock:
    """Runs are captured in a CUDA graph, so that the host's time is not measured."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def seconds(self, run: Callable[[], object]) -> float:
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
        """The bandwidth of a copy, read and write counted, and the rate of a large product in bf16."""
        source = torch.empty(COPIED_BYTES, dtype=torch.uint8, device=self._device)
        target = torch.empty_like(source)
        copy_s = self.seconds(lambda: target.copy_(source))
        a = torch.randn(PRODUCT_SIZE, PRODUCT_SIZE, dtype=torch.bfloat16, device=self._device)
        product = torch.empty_like(a)
        product_s = self.seconds(lambda: torch.mm(a, a, out=product))
        return Rates(2 * COPIED_BYTES / copy_s, 2 * PRODUCT_SIZE**3 / product_s)


class NoClock:
    """Runs without timing."""

    def seconds(self, run: Callable[[], object]) -> None:
        run()

    def rates(self) -> None:
        return None
