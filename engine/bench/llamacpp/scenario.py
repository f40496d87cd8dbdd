"""Times beside llama.cpp's with the demo model: a token of one stream, streams at once, and prompts.

Both take turns in each round with as many threads; the ratio is ours to llama.cpp's, the median of the rounds. In the
rows with adapters llama.cpp computes the base, since it does not batch requests of different adapters. The least
processor time of a round, prompts included, stands beside: on a machine that others use it tells more, with one thread.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec

from engine.bench.adapters import random_adapters
from engine.bench.drive import BenchEngine
from engine.bench.llamacpp.gguf import FORMATS, gguf_file
from engine.bench.llamacpp.peer import Peer
from engine.bench.llamacpp.turns import Round, Turns
from engine.bench.options import option_help
from engine.bench.report import Row
from engine.bench.workload import Workload
from engine.config import EngineConfig, load_model_config
from engine.hardware import num_threads


class Options(msgspec.Struct, frozen=True):
    """The options of `python -m engine.bench llamacpp`."""

    formats: Annotated[tuple[str, ...], option_help("blocks of llama.cpp's file: Q4_1, Q8_0")] = FORMATS
    streams: Annotated[tuple[int, ...], option_help("requests at once")] = (1, 8)
    prompts: Annotated[tuple[int, ...], option_help("tokens of lone prompts")] = (32, 64, 128, 256, 512)
    prompt_tokens: Annotated[int, option_help("tokens of each prompt of streams")] = 65
    new_tokens: Annotated[int, option_help("tokens of each completion of streams")] = 64
    threads: Annotated[int, option_help("threads of each side, 0 for one for each processor")] = 0
    rank: Annotated[int, option_help("rank of the adapters, of which each stream has its own")] = 16
    repeat: Annotated[int, option_help("rounds of each row")] = 5


def measure(config: EngineConfig, options: Options) -> Iterator[Row]:
    """Yield a row for each format and load, with llama.cpp's time beside the engine's."""
    workload = Workload(load_model_config(config.model_dir).vocab_size)
    digests = random_adapters(config, max(options.streams, default=0), options.rank)
    threads = num_threads(options.threads)
    config = msgspec.structs.replace(config, num_threads=options.threads)

    with tempfile.TemporaryDirectory() as folder, BenchEngine(config, preload=digests) as engine:
        turns = Turns(engine, workload, options.prompt_tokens, options.new_tokens)
        for blocks in options.formats:
            file = gguf_file(blocks, Path(folder))
            for streams in options.streams:
                with Peer(file, threads, streams) as peer:
                    for adapters in ([], digests[:streams]):
                        rounds = _rounds(lambda: turns.decode(peer, streams, adapters), options.repeat)  # noqa: B023
                        yield _row("ms a token", blocks, streams, len(adapters), options.prompt_tokens, rounds)
            with Peer(file, threads, 1) as peer:
                for num_tokens in options.prompts:
                    rounds = _rounds(lambda: turns.prefill(peer, num_tokens), options.repeat)  # noqa: B023
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
