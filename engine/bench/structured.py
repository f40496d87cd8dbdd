"""The cost of structured output: tokens per second under a JSON schema, and without one in the same run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from statistics import median
from typing import Annotated

import msgspec

from engine.bench.drive import BenchEngine, Source, Trace, run_closed
from engine.bench.measures import milliseconds, tokens_per_s_of_batch
from engine.bench.options import option_help
from engine.bench.report import Row
from engine.bench.workload import Workload
from engine.config import EngineConfig, load_model_config
from engine.protocol import Grammar, SamplingParams

# Long enough to never end before max_tokens does, so that both sides make the same number of tokens.
SCHEMA = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "kind": {"enum": ["bird", "fish", "plant"]},
            "count": {"type": "integer", "minimum": 0, "maximum": 1000},
            "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,12}$"}, "maxItems": 4},
            "seen": {"type": "boolean"},
        },
        "required": ["name", "kind", "count", "seen"],
        "additionalProperties": False,
    },
}
SCHEMA_GRAMMAR = Grammar("json_schema", json.dumps(SCHEMA))


class Options(msgspec.Struct, frozen=True):
    """The options of `python -m engine.bench structured`."""

    streams: Annotated[tuple[int, ...], option_help("requests at once")] = (8, 32)
    prompt_tokens: Annotated[int, option_help("tokens of each prompt")] = 64
    new_tokens: Annotated[int, option_help("tokens of each completion")] = 64
    temperature: Annotated[float, option_help("temperature of both sides")] = 1.0
    repeat: Annotated[int, option_help("runs of each kind; the first of each is not counted")] = 5


def measure(config: EngineConfig, options: Options) -> Iterator[Row]:
    """Yield a row for each number of streams."""
    workload = Workload(load_model_config(config.model_dir).vocab_size)
    with BenchEngine(config) as engine:
        for num_streams in options.streams:
            runs: dict[Grammar | None, list[list[Trace]]] = {None: [], SCHEMA_GRAMMAR: []}
            for _ in range(options.repeat + 1):
                for grammar, done in runs.items():
                    done.append(_run(engine, workload, options, num_streams, grammar))
            plain, structured = ([tokens_per_s_of_batch(traces) for traces in done[1:]] for done in runs.values())
            yield {
                "streams": num_streams,
                "tokens_per_s": round(median(structured), 1),
                "without_schema": round(median(plain), 1),
                "ratio": round(median(structured) / median(plain), 3),
                "first_ttft_ms": milliseconds([trace.ttft_s for trace in runs[SCHEMA_GRAMMAR][0]], 50),
                "ttft_ms": milliseconds([trace.ttft_s for traces in runs[SCHEMA_GRAMMAR][1:] for trace in traces], 50),
                "without": milliseconds([trace.ttft_s for traces in runs[None][1:] for trace in traces], 50),
            }


def _run(
    engine: BenchEngine, workload: Workload, options: Options, num_streams: int, grammar: Grammar | None
) -> list[Trace]:
    """Send num_streams requests at once, and return their traces.

    grammar: the grammar that all answers follow; None: answers are free.
    """
    requests = [
        workload.request(
            workload.prompt(options.prompt_tokens),
            options.new_tokens,
            sampling=SamplingParams(
                options.new_tokens, temperature=options.temperature, seed=number, ignore_eos=True, grammar=grammar
            ),
        )
        for number in range(num_streams)
    ]
    return run_closed(engine, [Source(iter(requests), num_streams)])
