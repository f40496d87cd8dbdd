"""A whole engine in this thread: requests go in between its turns, and the times of their tokens are taken.

Times are of the monotonic clock, in seconds, taken when a turn has ended. There is no other thread that would share the
processors and the interpreter with the engine: the cost of clients is measured where there are some (`gateway.bench`).
"""

from __future__ import annotations

import contextlib
import itertools
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType

import msgspec

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.mailbox import Mailbox
from engine.protocol import Abort, Delta, EngineStats, Final, GenerateRequest, StepOutputs

BuildCore = Callable[[EngineConfig, Mailbox], EngineCore]


class Trace(msgspec.Struct):
    """The tokens of one request and their times."""

    request: GenerateRequest
    sent_s: float
    """The time at which the request was sent, by the monotonic clock."""
    token_ids: list[int] = msgspec.field(default_factory=list)
    arrived_s: list[float] = msgspec.field(default_factory=list)
    """The time of each token of token_ids; a step with drafts brings several at once."""
    final: Final | None = None
    ended_s: float = math.inf
    """The time at which the request ended, by the monotonic clock; infinity while it runs."""

    @property
    def ttft_s(self) -> float:
        """Seconds from sending the request to its first token."""
        return self.arrived_s[0] - self.sent_s

    @property
    def gaps_s(self) -> list[float]:
        """The seconds between each token and the next."""
        return [later - earlier for earlier, later in itertools.pairwise(self.arrived_s)]


class Source(msgspec.Struct):
    """A closed loop: num_streams of these requests are under way, as long as there are any left to send."""

    requests: Iterator[GenerateRequest]
    num_streams: int


class BenchEngine:
    """An engine to measure, used as a context; at its end all running requests are aborted.

    preload: the content keys of adapters that are resident from the start. build: makes the core that is driven; None:
    that of a whole engine with this configuration.
    """

    _core: EngineCore

    def __init__(self, config: EngineConfig, preload: Iterable[str] = (), build: BuildCore | None = None) -> None:
        self._config = config
        self._preload = list(preload)
        self._build = build or _whole_core
        self._mailbox = Mailbox()
        self._under_way: dict[str, Trace] = {}
        self.stats = EngineStats()  # the latest picture, the first of all at the start and the last one after the end

    def __enter__(self) -> BenchEngine:
        self._core = self._build(self._config, self._mailbox)
        for digest in self._preload:
            self._core.preload(digest)
        self.turn()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.abort_all()
        self._core.close()
        self._take_events()
        self._mailbox.close()

    @property
    def num_under_way(self) -> int:
        """The number of requests that were sent and have not ended."""
        return len(self._under_way)

    def send(self, request: GenerateRequest) -> Trace:
        """Send a request, and return its trace, which fills while the engine takes turns."""
        trace = self._under_way[request.request_id] = Trace(request, time.monotonic())
        self._mailbox.command(request)
        return trace

    def abort_all(self) -> None:
        """Abort all requests, and wait until all have ended."""
        for request_id in self._under_way:
            self._mailbox.command(Abort(request_id))
        while self._under_way:
            self.turn()

    def turn(self) -> list[Trace]:
        """Return the traces of requests that ended with the engine's next turn.

        Raises RuntimeError: when a request ended in an error.
        """
        self._core.turn()
        return self._take_events()

    def answer(self, request: GenerateRequest) -> Trace:
        """Send one request, wait for its end, and return its trace."""
        (trace,) = run_closed(self, [Source(iter([request]), 1)])
        return trace

    def _take_events(self) -> list[Trace]:
        now_s = time.monotonic()
        ended = []
        for event in self._mailbox.take_events():
            if isinstance(event, EngineStats):
                self.stats = event
            elif isinstance(event, StepOutputs):
                for delta in event.deltas:
                    self._take_delta(delta, now_s)
                ended += [self._take_final(final, now_s) for final in event.finals]
        return ended

    def _take_delta(self, delta: Delta, now_s: float) -> None:
        trace = self._under_way[delta.request_id]
        trace.token_ids += delta.token_ids
        trace.arrived_s += [now_s] * len(delta.token_ids)

    def _take_final(self, final: Final, now_s: float) -> Trace:
        trace = self._under_way.pop(final.request_id)
        if final.error is not None:
            raise RuntimeError(f"{final.request_id}: {final.error.code}: {final.error.message}")
        trace.final, trace.ended_s = final, now_s
        return trace


def run_closed(engine: BenchEngine, sources: list[Source], seconds: float = math.inf) -> list[Trace]:
    """Return the traces of all requests that were sent, in order.

    After `seconds` nothing more is sent and what is under way is aborted.
    """
    traces: list[Trace] = []
    source_of: dict[str, Source] = {}

    def send_next(source: Source) -> None:
        with contextlib.suppress(StopIteration):
            traces.append(engine.send(next(source.requests)))
            source_of[traces[-1].request.request_id] = source

    for source in sources:
        for _ in range(source.num_streams):
            send_next(source)
    end_s = time.monotonic() + seconds
    while engine.num_under_way and time.monotonic() < end_s:
        for trace in engine.turn():
            send_next(source_of[trace.request.request_id])
    engine.abort_all()
    return traces


def _whole_core(config: EngineConfig, mailbox: Mailbox) -> EngineCore:
    from engine.setup import build_core  # sockets and grammars, which a core made elsewhere does without

    return build_core(config, mailbox)[0]


@contextlib.contextmanager
def busy_processes(number: int, settle_s: float) -> Iterator[None]:
    """Run this many processes that compute without end, until the context is left.

    settle_s: the seconds that they have computed before the context begins.
    """
    processes = [subprocess.Popen([sys.executable, "-Sc", "while True: pass"]) for _ in range(number)]
    try:
        time.sleep(settle_s)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
