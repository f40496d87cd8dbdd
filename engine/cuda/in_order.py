"""An accelerator without a GPU: everything is done when it is given, on a CPU, with Triton's interpreter for kernels.

For tests, and for benchmarks' dry runs. Claims no figures.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from engine.cuda.accelerator import Graph, MemoryCounts, Stream
from engine.transfers import Event, PastEvent


class InOrderStream:
    """A stream on which all work is done once it is launched, so that there is nothing to wait for."""

    def record(self) -> Event:
        """Return an event that has come: all that was given is done."""
        return PastEvent()

    def wait(self, event: Event) -> None:
        """Return at once: the event has come."""

    def use(self) -> AbstractContextManager[object]:
        """Return a context that changes nothing: there is one stream."""
        return nullcontext()


class RerunGraph:
    """A graph that is computed anew at each replay.

    Its output is in the same place each time, as a captured graph's is.

    Nothing is computed before the first replay.
    """

    def __init__(self, run: Callable[[], Tensor]) -> None:
        self._run = run
        self._output: Tensor | None = None

    def replay(self, at_cut: Callable[[], None]) -> Tensor:
        """Compute everything, call at_cut, and return the output in the place that it had the first time."""
        output = self._run()
        at_cut()
        self._output = output if self._output is None else self._output.copy_(output)
        return self._output


class InOrderAccelerator:
    """An accelerator that computes at once. total_bytes: the memory that it claims to have; none of it is used."""

    def __init__(self, total_bytes: int = 1 << 30) -> None:
        self.device = torch.device("cpu")
        self.compute: Stream = InOrderStream()
        self._total_bytes = total_bytes

    def side_stream(self) -> Stream:
        """Return another stream on which everything is done at once."""
        return InOrderStream()

    def host_buffer(self, num_bytes: int) -> Tensor:
        """Return a uint8 buffer of ordinary memory."""
        return torch.empty(num_bytes, dtype=torch.uint8)

    def capture(self, run: Callable[[], Tensor]) -> Graph:
        """Return a graph that calls `run` at each replay."""
        return RerunGraph(run)

    def cut(self) -> None:
        """Do nothing: a run that is computed anew has no parts."""

    def beside(self, run: Callable[[], object]) -> Callable[[], None]:
        """Run at once, and return a function that has nothing to wait for."""
        run()
        return lambda: None

    def memory(self) -> MemoryCounts:
        """Return no bytes in use, of the memory that is claimed."""
        return MemoryCounts(0, self._total_bytes)

    def peak_bytes(self, run: Callable[[], object]) -> int:
        """Run, and return 0: nothing is reserved on a CPU."""
        run()
        return 0
