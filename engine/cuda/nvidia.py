"""A CUDA device as an accelerator, through PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from engine.cuda.accelerator import Graph, MemoryCounts, Stream
from engine.transfers import Event


class CudaEvent:
    """A point in the work of a CUDA stream."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    @property
    def has_come(self) -> bool:
        """True once the stream has come to this point."""
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        """Wait for this point on the host."""
        self.event.synchronize()


class CudaStream:
    """A CUDA stream of PyTorch."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def record(self) -> Event:
        """Return an event that comes when everything given so far is done."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return CudaEvent(event)

    def wait(self, event: Event) -> None:
        """Have work that is given to the stream from now on start after the event; the host goes on."""
        assert isinstance(event, CudaEvent)
        self._stream.wait_event(event.event)

    def use(self) -> AbstractContextManager[object]:
        """Give PyTorch's operations of the calling thread to this stream until the context is left."""
        return torch.cuda.stream(self._stream)


class CudaGraph:
    """A captured graph. parts: one, or two with the cut between them; replayed one after the other."""

    def __init__(self, parts: Sequence[torch.cuda.CUDAGraph], output: Tensor) -> None:
        self._parts = parts
        self._output = output

    def replay(self, at_cut: Callable[[], None]) -> Tensor:
        """Replay the parts, and call at_cut after the first one has been launched; return the captured output."""
        self._parts[0].replay()
        at_cut()
        for part in self._parts[1:]:
            part.replay()
        return self._output


class CudaAccelerator:
    """An accelerator that is a CUDA device.

    The graphs that it captures are never replayed at the same time, so they share their temporary memory.
    """

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.set_device(index)
        self.device = torch.device("cuda", index)
        self.compute: Stream = CudaStream(torch.cuda.current_stream(self.device))
        self._graph_pool = torch.cuda.graph_pool_handle()
        self._side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._capturing = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._parts: list[torch.cuda.CUDAGraph] = []  # of the graph that is being captured

    def side_stream(self) -> Stream:
        """Return a new stream of the device."""
        return CudaStream(torch.cuda.Stream(self.device))  # type: ignore[no-untyped-call]

    def host_buffer(self, num_bytes: int) -> Tensor:
        """Return a uint8 buffer of pinned memory."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def capture(self, run: Callable[[], Tensor]) -> Graph:
        """Run once to compile kernels, then capture a second run, in two parts where it cuts."""
        run()  # compiles kernels and makes libraries choose theirs, neither of which a capture may contain
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        with torch.cuda.stream(self._capturing):
            try:
                self._begin_part()
                output = run()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # that this capture failed, too
                    self._parts[-1].capture_end()
                self._parts = []
                raise
            self._parts[-1].capture_end()
        parts, self._parts = self._parts, []
        return CudaGraph(parts, output)

    def cut(self) -> None:
        """End the part that is being captured and begin the next one; outside of captures do nothing."""
        if self._parts:
            self._parts[-1].capture_end()
            self._begin_part()

    def _begin_part(self) -> None:
        self._parts.append(torch.cuda.CUDAGraph())
        self._parts[-1].capture_begin(pool=self._graph_pool)

    def beside(self, run: Callable[[], object]) -> Callable[[], None]:
        """Run on the second stream beside what follows; return a function by which the current stream waits for it."""
        current = torch.cuda.current_stream(self.device)
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            run()
        return lambda: current.wait_stream(self._side)

    def memory(self) -> MemoryCounts:
        """Return the memory that is in use by anyone and all of it, once PyTorch has given unused memory back."""
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self.device)
        return MemoryCounts(total - free, total)

    def peak_bytes(self, run: Callable[[], object]) -> int:
        """Return the bytes that PyTorch reserves at most during a run, beyond those before it."""
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_reserved(self.device)
        run()
        torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_reserved(self.device) - before
