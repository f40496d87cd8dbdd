"""One engine and llama.cpp, asked for the same by turns."""

from __future__ import annotations

import time
from typing import NamedTuple

from engine.bench.drive import BenchEngine, Source, Trace, run_closed
from engine.bench.llamacpp.peer import Peer, RequestTimes
from engine.bench.measures import tokens_per_s_of_batch
from engine.bench.pairs import Pair
from engine.bench.workload import Workload


class Round(NamedTuple):
    """The milliseconds of both sides for one token, or for one prompt."""

    ours: float
    """Milliseconds of the engine."""
    theirs: float
    """Milliseconds of llama.cpp."""
    our_processor: float
    """Milliseconds of processor time of the engine."""
    their_processor: float
    """Milliseconds of processor time of llama.cpp."""


class Turns:
    """Measures the engine and llama.cpp by turns, with new prompts in each turn.

    `streams` requests are sent at once; each takes one of the adapters by turns, or none.
    """

    def __init__(self, engine: BenchEngine, workload: Workload, prompt_tokens: int, new_tokens: int) -> None:
        self._engine = engine
        self._workload = workload
        self._prompt_tokens = prompt_tokens
        self._new_tokens = new_tokens

    def ours(self, streams: int, adapters: list[str]) -> list[Trace]:
        """Send `streams` requests to the engine at once, and return their traces."""
        return self._answer(self._prompts(streams, self._prompt_tokens), self._new_tokens, adapters)

    def decode(self, peer: Peer, streams: int, adapters: list[str]) -> Round:
        """Measure decoding; return the milliseconds of a token and its processor time, the engine's and the peer's.

        streams: the number of requests at once.
        """
        before_s = time.process_time()
        traces = self.ours(streams, adapters)
        processor_s = time.process_time() - before_s
        theirs = self._peer_times(peer, streams)
        num_tokens = sum(len(trace.token_ids) for trace in traces)
        processor = 1e3 * processor_s / num_tokens, 1e3 * theirs.processor_s / theirs.num_tokens
        if streams == 1:
            return Round(token_ms(traces), theirs.token_ms, *processor)
        return Round(1e3 / rate(traces), 1e3 * theirs.seconds / theirs.num_tokens, *processor)

    def prefill(self, peer: Peer, num_tokens: int) -> Round:
        """Measure a prompt; return its milliseconds and its processor time, the engine's and the peer's."""
        before_s = time.process_time()
        (trace,) = self._answer(self._prompts(1, num_tokens), 1, [])
        processor_s = time.process_time() - before_s
        theirs = peer.answer(self._prompts(1, num_tokens), 1)
        return Round(1e3 * trace.ttft_s, theirs.prompt_ms, 1e3 * processor_s, 1e3 * theirs.processor_s)

    def token_ms_beside(self, peer: Peer, streams: int, adapters: list[str]) -> Pair:
        """Measure as `decode` does; return only the milliseconds of a token, as a pair."""
        return Pair(*self.decode(peer, streams, adapters)[:2])

    def rates_beside(self, peer: Peer, streams: int, adapters: list[str]) -> Pair:
        """Measure as `decode` does; return tokens per second, as a pair."""
        ours, theirs, *_ = self.decode(peer, streams, adapters)
        return Pair(1e3 / ours, 1e3 / theirs)

    def prefill_ms_beside(self, peer: Peer, num_tokens: int) -> Pair:
        """Measure as `prefill` does; return only the milliseconds of a prompt, as a pair."""
        return Pair(*self.prefill(peer, num_tokens)[:2])

    def _peer_times(self, peer: Peer, streams: int) -> RequestTimes:
        return peer.answer(self._prompts(streams, self._prompt_tokens), self._new_tokens)

    def _prompts(self, number: int, num_tokens: int) -> list[list[int]]:
        return [self._workload.prompt(num_tokens) for _ in range(number)]

    def _answer(self, prompts: list[list[int]], new_tokens: int, adapters: list[str]) -> list[Trace]:
        picked = self._workload.pick(adapters, "turns")
        requests = [self._workload.request(prompt, new_tokens, adapter=next(picked)) for prompt in prompts]
        return run_closed(self._engine, [Source(iter(requests), len(requests))])


def token_ms(traces: list[Trace]) -> float:
    """Return the mean time between tokens of the first request, its first token aside."""
    return 1e3 * sum(traces[0].gaps_s) / len(traces[0].gaps_s)


def rate(traces: list[Trace]) -> float:
    """Return tokens per second of requests that were sent at once."""
    return tokens_per_s_of_batch(traces)
