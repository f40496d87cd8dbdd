"""Measure the same model served over HTTP beside the engine alone, in tokens per second.

Both sides take turns in each round, at the same streams: `lorikeet serve` with its gateway and database, asked by this
process, and an engine in this process. `python -m gateway.bench.own_server FOLDER COMMAND` starts the server, and
runs COMMAND, such as this benchmark, beside it.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from typing import Annotated

import httpx
import msgspec

from engine.bench.drive import BenchEngine
from engine.bench.llamacpp.turns import Turns, rate
from engine.bench.options import option_help
from engine.bench.pairs import Bound, Pair, ratio_row, rounds
from engine.bench.report import Row
from engine.bench.workload import Workload
from engine.config import EngineConfig, load_model_config

LEAST = 0.85
TIMEOUT_S = 600.0


class Options(msgspec.Struct, frozen=True):
    """The options of `python -m engine.bench served`."""

    url: Annotated[str, option_help("base URL of the server, with /v1; empty for OPENAI_BASE_URL")] = ""
    key: Annotated[str, option_help("a tenant's key; empty for OPENAI_API_KEY")] = ""
    model: Annotated[str, option_help("name of the base model at the server")] = "smollm2-135m-instruct"
    streams: Annotated[tuple[int, ...], option_help("requests at once")] = (1, 8, 32)
    prompt_tokens: Annotated[int, option_help("tokens of each prompt")] = 65
    new_tokens: Annotated[int, option_help("tokens of each completion")] = 64
    repeat: Annotated[int, option_help("rounds of each number of streams")] = 5


def measure(config: EngineConfig, options: Options) -> Iterator[Row]:
    """Yield a row for each number of streams.

    Raises SystemExit: when the server's URL or a key is missing.
    """
    url = options.url or os.environ.get("OPENAI_BASE_URL", "")
    key = options.key or os.environ.get("OPENAI_API_KEY", "")
    if not url or not key:
        raise SystemExit("served: --url and --key, or OPENAI_BASE_URL and OPENAI_API_KEY, say which server to measure")
    workload = Workload(load_model_config(config.model_dir).vocab_size)
    with BenchEngine(config) as engine, asyncio.Runner() as runner:
        turns = Turns(engine, workload, options.prompt_tokens, options.new_tokens)
        client = httpx.AsyncClient(
            base_url=url,
            headers={"authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(TIMEOUT_S),
            limits=httpx.Limits(),
            trust_env=False,
        )

        def beside(streams: int) -> Pair:
            prompts = [workload.prompt(options.prompt_tokens) for _ in range(streams)]
            served = runner.run(_tokens_per_s(client, options, prompts))
            return Pair(served, rate(turns.ours(streams, [])))

        for streams in options.streams:
            found = rounds(lambda: beside(streams), options.repeat)  # noqa: B023
            case = f"tokens/s over HTTP, {streams} streams, beside the engine alone"
            yield ratio_row("4", case, found, Bound(LEAST, is_least=True))
        runner.run(client.aclose())


async def _tokens_per_s(client: httpx.AsyncClient, options: Options, prompts: list[list[int]]) -> float:
    """Send all prompts at once, and return the tokens per second from then to the end of the last stream."""
    started_s = time.perf_counter()
    counts = await asyncio.gather(*(_num_streamed(client, options, prompt) for prompt in prompts))
    return sum(counts) / (time.perf_counter() - started_s)


async def _num_streamed(client: httpx.AsyncClient, options: Options, prompt: list[int]) -> int:
    """Read one streamed completion to its end and return its number of tokens by the server's usage."""
    body = {
        "model": options.model,
        "prompt": prompt,
        "max_tokens": options.new_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    num_tokens = 0
    async with client.stream("POST", "completions", json=body) as reply:
        if reply.is_error:
            raise SystemExit(f"served: {reply.status_code} {(await reply.aread()).decode(errors='replace')}")
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                usage = json.loads(line[len("data: ") :]).get("usage")
                num_tokens = usage["completion_tokens"] if usage else num_tokens
    return num_tokens
