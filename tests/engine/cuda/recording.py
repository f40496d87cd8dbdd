"""An accelerator that records its streams' orders and counts replays of graphs, and a GPU whose replays are counted.

Tests decide when an event of the recording accelerator has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import msgspec
import torch
from torch import Tensor

from engine.cuda.accelerator import Graph, MemoryCounts, Stream
from engine.cuda.in_order import RerunGraph
from engine.cuda.nvidia import CudaAccelerator
from engine.transfers import Event


class Entry(msgspec.Struct, frozen=True):
    """An operation on a stream: to "record" an event or to "wait" for one."""

    stream: str
    order: str
    event: int


class RecordedEvent:
    """An event of a recorded stream.

    waited: the numbers of events that the host has waited for, in order; shared by all events.
    """

    def __init__(self, number: int, waited: list[int]) -> None:
        self.number = number
        self.has_come = False
        self._waited = waited

    def synchronize(self) -> None:
        self.has_come = True
        self._waited.append(self.number)


class RecordingStream:
    """A stream that appends its records of events and waits for events to a journal."""

    def __init__(self, name: str, journal: list[Entry], events: list[RecordedEvent], waited: list[int]) -> None:
        self.name = name
        self._journal = journal
        self._events = events
        self._waited = waited

    def record(self) -> Event:
        event = RecordedEvent(len(self._events), self._waited)
        self._events.append(event)
        self._journal.append(Entry(self.name, "record", event.number))
        return event

    def wait(self, event: Event) -> None:
        assert isinstance(event, RecordedEvent)
        self._journal.append(Entry(self.name, "wait", event.number))

    def use(self) -> AbstractContextManager[object]:
        return self._in_use()

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        yield


class RecordingAccelerator:
    """An accelerator that computes immediately on a CPU, and records operations on streams and replays of graphs."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.num_replays = 0
        self.journal: list[Entry] = []
        self.events: list[RecordedEvent] = []
        self.waited: list[int] = []
        self.compute: Stream = RecordingStream("compute", self.journal, self.events, self.waited)

    def side_stream(self) -> Stream:
        return RecordingStream("side", self.journal, self.events, self.waited)

    def host_buffer(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def capture(self, run: Callable[[], Tensor]) -> Graph:
        return CountedGraph(RerunGraph(run), self._count)

    def _count(self) -> None:
        self.num_replays += 1

    def cut(self) -> None:
        pass

    def beside(self, run: Callable[[], object]) -> Callable[[], None]:
        run()
        return lambda: None

    def memory(self) -> MemoryCounts:
        return MemoryCounts(0, 1 << 30)

    def peak_bytes(self, run: Callable[[], object]) -> int:
        run()
        return 0


class CountedGraph:
    """A graph that calls `count` for each replay."""

    def __init__(self, graph: Graph, count: Callable[[], None]) -> None:
        self._graph = graph
        self._count = count

    def replay(self, at_cut: Callable[[], None]) -> Tensor:
        self._count()
        return self._graph.replay(at_cut)


class CountingCudaAccelerator(CudaAccelerator):
    """A GPU that counts the replays of its graphs."""

    def __init__(self) -> None:
        super().__init__(torch.device("cuda"))
        self.num_replays = 0

    def capture(self, run: Callable[[], Tensor]) -> Graph:
        return CountedGraph(super().capture(run), self._count)

    def _count(self) -> None:
        self.num_replays += 1
