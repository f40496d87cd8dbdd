"""The operations of a GPU that the engine uses beside arithmetic: streams, events, graphs and counts of memory.

`engine.cuda.nvidia` is the real one. `engine.cuda.in_order` does everything at once on a CPU, so that the decisions
made with these (waits, replayed graphs, the division of memory) run and are tested without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from engine.transfers import Event


class Stream(Protocol):
    """A queue of work on a device, which is done in the order in which it was given."""

    def record(self) -> Event:
        """Return an event that comes when everything given so far is done."""

    def wait(self, event: Event) -> None:
        """Have work that is given to the stream from now on start after the event; the host goes on."""

    def use(self) -> AbstractContextManager[object]:
        """Give the operations of the calling thread to this stream until the context is left."""


class Graph(Protocol):
    """A captured sequence of operations."""

    def replay(self, at_cut: Callable[[], None]) -> Tensor:
        """Replay the operations on the present contents of their inputs, and return the captured run's result.

        at_cut: called once, when the operations before the cut were given to the device.
        """


class MemoryCounts(NamedTuple):
    """Bytes of a device's memory: those in use by any process, and all."""

    used: int
    total: int


Beside = Callable[[Callable[[], object]], Callable[[], None]]


class Accelerator(Protocol):
    """A device. Memory is reserved through PyTorch on `device`."""

    @property
    def device(self) -> torch.device:
        """The device as PyTorch names it."""

    @property
    def compute(self) -> Stream:
        """The stream that the stepping thread's operations are given to."""

    def side_stream(self) -> Stream:
        """Return a new stream, which runs beside `compute`."""

    def host_buffer(self, num_bytes: int) -> Tensor:
        """Return a uint8 buffer, from which copies to the device don't wait."""

    def capture(self, run: Callable[[], Tensor]) -> Graph:
        """Capture operations on inputs whose addresses stay the same; run may be called several times."""

    def cut(self) -> None:
        """Cut a capture, once: the operations after it are launched while the device runs those before it."""

    def beside(self, run: Callable[[], object]) -> Callable[[], None]:
        """Launch the operations of `run` on a second stream, beside those that the current stream gets next.

        The streams run side by side until the returned function is called, which makes the current one wait. May be
        called within a capture. One at a time.
        """

    def memory(self) -> MemoryCounts:
        """Return the memory of the device that is taken, and all of it."""

    def peak_bytes(self, run: Callable[[], object]) -> int:
        """Return the most memory in bytes that `run` takes at any time, beyond what is taken before it."""
