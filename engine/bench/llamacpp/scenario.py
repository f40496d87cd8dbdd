"""Times beside llama.cpp's with the demo model: a token of one stream, streams at once, and prompts.

Both take turns in each round with as many threads; the ratio is ours to llama.cpp's, the median of the rounds. In the
rows with adapters llama.cpp computes the base, since it does not batch requests of different adapters. The least
processor time of a round, prompts included, stands beside: on a machine that others use it tells more, with one thread.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Annotated, NamedTuple

import msgspec

from engine.bench.adapters import random_adapters
from engine.bench.drive import BenchEngine, Source, Trace, run_closed
from engine.bench.llamacpp.gguf import FORMATS, gguf_file
from engine.bench.llamacpp.peer import Peer
from engine.bench.options import about
from engine.bench.report import Row
from engine.bench.workload import Workload
from engine.config import EngineConfig, load_model_config
from engine.hardware import num_threads


class Round(NamedTuple):
    """Milliseconds of the engine and of llama.cpp, and of their processor time, for a token or for a prompt."""

    ours: float
    theirs: float
    our_processor: float
    their_processor: float


class Options(msgspec.Struct, frozen=True):
    formats: Annotated[tuple[str, ...], about("blocks of llama.cpp's file: Q4_1, Q8_0")] = FORMATS
    streams: Annotated[tuple[int, ...], about("requests at once")] = (1, 8)
    prompts: Annotated[tuple[int, ...], about("tokens of lone prompts")] = (32, 64, 128, 256, 512)
    prompt_tokens: Annotated[int, about("of each prompt of streams")] = 65
    new_tokens: Annotated[int, about("of each completion of streams")] = 64
    threads: Annotated[int, about("of each side, 0 for one for each processor")] = 0
    rank: Annotated[int, about("of the adapters, of which each stream has its own")] = 16
    repeat: Annotated[int, about("rounds of each row")] = 5


def measure(config: EngineConfig, options: Options) -> Iterator[Row]:
    workload = Workload(load_model_config(config.model_dir).vocab_size)
    digests = random_adapters(config, max(options.streams, default=0), options.rank)
    threads = num_threads(options.threads)
    config = msgspec.structs.replace(config, num_threads=options.threads)

    def ours(engine: BenchEngine, prompts: list[list[int]], new_tokens: int, adapters: list[str]) -> list[Trace]:
        picked = workload.pick(adapters, "turns")
        requests = [workload.request(prompt, new_tokens, adapter=next(picked)) for prompt in prompts]
        return run_closed(engine, [Source(iter(requests), len(requests))])

    def prompts(number: int, num_tokens: int) -> list[list[int]]:
        return [workload.prompt(num_tokens) for _ in range(number)]

    def decode(engine: BenchEngine, peer: Peer, streams: int, adapters: list[str]) -> Round:
        before_s = time.process_time()
        traces = ours(engine, prompts(streams, options.prompt_tokens), options.new_tokens, adapters)
        processor_s = time.process_time() - before_s
        theirs = peer.answer(prompts(streams, options.prompt_tokens), options.new_tokens)
        num_tokens = sum(len(trace.token_ids) for trace in traces)
        processor = 1e3 * processor_s / num_tokens, 1e3 * theirs.processor_s / theirs.num_tokens
        if streams == 1:
            return Round(1e3 * sum(traces[0].gaps_s) / len(traces[0].gaps_s), theirs.token_ms, *processor)
        ours_s = max(trace.ended_s for trace in traces) - traces[0].sent_s
        return Round(1e3 * ours_s / num_tokens, 1e3 * theirs.seconds / theirs.num_tokens, *processor)

    def prefill(engine: BenchEngine, peer: Peer, num_tokens: int) -> Round:
        before_s = time.process_time()
        (trace,) = ours(engine, prompts(1, num_tokens), 1, [])
        processor_s = time.process_time() - before_s
        theirs = peer.answer(prompts(1, num_tokens), 1)
        return Round(1e3 * trace.ttft_s, theirs.prompt_ms, 1e3 * processor_s, 1e3 * theirs.processor_s)

    with tempfile.TemporaryDirectory() as folder, BenchEngine(config, preload=digests) as engine:
        for blocks in options.formats:
            file = gguf_file(blocks, Path(folder))
            for streams in options.streams:
                with Peer(file, threads, streams) as peer:
                    for adapters in ([], digests[:streams]):
                        rounds = _rounds(lambda: decode(engine, peer, streams, adapters), options.repeat)  # noqa: B023
                        yield _row("ms a token", blocks, streams, len(adapters), options.prompt_tokens, rounds)
            with Peer(file, threads, 1) as peer:
                for num_tokens in options.prompts:
                    rounds = _rounds(lambda: prefill(engine, peer, num_tokens), options.repeat)  # noqa: B023
                    yield _row("ms of a prompt", blocks, 1, 0, num_tokens, rounds)


def _rounds(measured: Callable[[], Round], repeat: int) -> list[Round]:
    measured()  # warms up
    return [measured() for _ in range(repeat)]


def _row(case: str, blocks: str, streams: int, adapters: int, prompt: int, rounds: list[Round]) -> Row:
    return {
        "case": case,
        "blocks": blocks,
        "streams": streams,
        "adapters": adapters,
        "prompt": prompt,
        "ours": round(median(each.ours for each in rounds), 2),
        "llama.cpp": round(median(each.theirs for each in rounds), 2),
        "ratio": round(median(each.ours / each.theirs for each in rounds), 2),
        "processor_ours": round(min(each.our_processor for each in rounds), 2),
        "processor_llama.cpp": round(min(each.their_processor for each in rounds), 2),
    }
