"""Speculative decoding by prompt lookup on text that repeats itself: tokens per second with drafts and without."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Annotated

import msgspec

from engine.bench.drive import BenchEngine, Source, Trace, run_closed
from engine.bench.measures import tokens_per_s_of_batch
from engine.bench.options import option_help
from engine.bench.report import Row
from engine.bench.workload import Workload
from engine.config import EngineConfig, load_model_config


class Options(msgspec.Struct, frozen=True):
    """The options of `python -m engine.bench speculative`."""

    streams: Annotated[tuple[int, ...], option_help("requests at once")] = (1, 8, 32)
    draft_tokens: Annotated[int, option_help("tokens guessed ahead of a sequence in one step")] = 4
    phrase_tokens: Annotated[int, option_help("tokens of the phrase that a prompt repeats")] = 16
    phrase_repeats: Annotated[int, option_help("times that the phrase is in a prompt")] = 6
    new_tokens: Annotated[int, option_help("tokens of each completion, greedy")] = 64
    repeat: Annotated[int, option_help("runs of each kind")] = 3


def measure(config: EngineConfig, options: Options) -> Iterator[Row]:
    """Yield a row for each number of streams."""
    for num_streams in options.streams:
        plain = _runs(config, options, num_streams, 0)
        drafted = _runs(config, options, num_streams, options.draft_tokens)
        rate, rate_without = (median(map(tokens_per_s_of_batch, runs)) for runs in (drafted, plain))
        finals = [trace.final for traces in drafted for trace in traces if trace.final is not None]
        num_drafted = sum(final.usage.draft_tokens for final in finals)
        num_accepted = sum(final.usage.accepted_draft_tokens for final in finals)
        yield {
            "streams": num_streams,
            "draft_tokens": options.draft_tokens,
            "tokens_per_s": round(rate, 1),
            "without_drafts": round(rate_without, 1),
            "ratio": round(rate / rate_without, 2),
            "drafted": num_drafted,
            "accepted": num_accepted,
            "acceptance": round(num_accepted / max(num_drafted, 1), 3),
            "same_text": f"{_num_equal(plain, drafted)}/{len(finals)}",
        }


def _runs(config: EngineConfig, options: Options, num_streams: int, draft_tokens: int) -> list[list[Trace]]:
    """Run prompts with a number of draft tokens, several times.

    Return the runs after the first one, which warms up.
    """
    workload = Workload(load_model_config(config.model_dir).vocab_size)
    with BenchEngine(msgspec.structs.replace(config, num_draft_tokens=draft_tokens)) as engine:
        runs = []
        for _ in range(options.repeat + 1):
            phrases = [workload.prompt(options.phrase_tokens) for _ in range(num_streams)]
            requests = [workload.request(phrase * options.phrase_repeats, options.new_tokens) for phrase in phrases]
            runs.append(run_closed(engine, [Source(iter(requests), num_streams)]))
    return runs[1:]


def _num_equal(plain: list[list[Trace]], drafted: list[list[Trace]]) -> int:
    """Return the number of completions that are the same with drafts as without.

    In low precision near ties may fall either way, since the products of a step are summed in an order that depends on
    its shape.
    """
    pairs = (pair for runs in zip(plain, drafted, strict=True) for pair in zip(*runs, strict=True))
    return sum(one.token_ids == other.token_ids for one, other in pairs)
