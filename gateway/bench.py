"""`python -m gateway.bench`: output tokens per second and latencies of a running server, over HTTP, as clients see them.

A closed loop: each stream sends its next request when the last one has ended. Starts nothing and knows nothing of what
answers beyond OpenAI's completions with `ignore_eos`. A program, never a timed test.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import httpx
import msgspec
import uvloop

WORDS = (
    "a river of small green birds turns over the old harbor while seven quiet engines carry every letter home "
    "before winter and nobody counts the lanterns that burn along both sides of the long stone bridge"
).split()
CONNECT_TIMEOUT_S = 5.0
REPLY_TIMEOUT_S = 600.0
EVENT_START = b"data: "
EVENT_END = b"\n\n"

Distribution = Literal["turn", "uniform", "zipf"]


class Unusable(Exception):
    """The server cannot be measured; the message is one line that says why."""


class Failed(Exception):
    """One request failed; the message says how."""


class Load(msgspec.Struct, frozen=True):
    """What each request asks for. prompt_words, shared_words: words, each about a token; the shared ones begin every
    prompt. distribution: of the models, in turn, uniformly, or with popularity 1 / rank."""

    models: Sequence[str]
    max_tokens: int
    prompt_words: int
    shared_words: int
    distribution: Distribution


class Job(msgspec.Struct, frozen=True):
    model: str
    prompt: str
    max_tokens: int


class Reply(msgspec.Struct, frozen=True):
    """One complete answer. time_per_token_s: of the tokens after the first, None where there is no other."""

    num_tokens: int
    num_prompt_tokens: int
    ttft_s: float
    time_per_token_s: float | None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Choice(msgspec.Struct):
    text: str


class _Error(msgspec.Struct):
    message: str


class _Event(msgspec.Struct):
    """A chunk of a stream, or what stands in its place."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Event).decode


def jobs(load: Load, count: int, rng: random.Random) -> Iterator[Job]:
    """The same state of rng gives the same jobs."""
    shared = rng.choices(WORDS, k=load.shared_words)
    popularity = [1 / rank if load.distribution == "zipf" else 1.0 for rank in range(1, len(load.models) + 1)]
    for number in range(count):
        if load.distribution == "turn":
            model = load.models[number % len(load.models)]
        else:
            model = rng.choices(load.models, popularity)[0]
        yield Job(model, " ".join(shared + rng.choices(WORDS, k=load.prompt_words)), load.max_tokens)


async def ask(client: httpx.AsyncClient, job: Job) -> Reply:
    """Raises Failed, and httpx.TransportError where no answer comes."""
    body = {
        "model": job.model,
        "prompt": job.prompt,
        "max_tokens": job.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    start_s = time.perf_counter()
    first_s = last_s = None
    usage = None
    async with client.stream("POST", "/completions", json=body) as response:
        if response.status_code != 200:
            raise Failed(f"{response.status_code}: {_message(await response.aread())}")
        pending = b""
        async for data in response.aiter_bytes():
            *events, pending = (pending + data).split(EVENT_END)
            for event in events:
                if event == b"data: [DONE]":
                    continue
                chunk = _event(event)
                if chunk.error is not None:
                    raise Failed(chunk.error.message)
                usage = chunk.usage or usage
                if chunk.choices:
                    last_s = time.perf_counter()
                    first_s = first_s or last_s
    if usage is None or first_s is None or last_s is None:
        raise Failed("the stream ended early")
    num_more = usage.completion_tokens - 1
    time_per_token_s = (last_s - first_s) / num_more if num_more > 0 else None
    return Reply(usage.completion_tokens, usage.prompt_tokens, first_s - start_s, time_per_token_s)


def _event(event: bytes) -> _Event:
    """Raises Failed."""
    try:
        return _decode(event.removeprefix(EVENT_START))
    except msgspec.DecodeError as error:
        raise Failed(f"an event is not a chunk of a completion: {error}") from None


def _message(body: bytes) -> str:
    """The server's own words in a reply that is an error."""
    try:
        error = _decode(body).error
    except msgspec.DecodeError:
        error = None
    return error.message if error is not None else "not an answer of an OpenAI-compatible server"


async def check(client: httpx.AsyncClient, models: Sequence[str]) -> None:
    """One token of every model: what is wrong shows at once, and no adapter's first load is timed. Raises Unusable."""
    for model in dict.fromkeys(models):
        try:
            await ask(client, Job(model, "Hello", 1))
        except Failed as error:
            raise Unusable(f"{model} does not answer: {error}") from None
        except httpx.ConnectError:
            raise Unusable(f"no server answers at {client.base_url}; start one with `lorikeet serve`") from None
        except httpx.TransportError as error:
            raise Unusable(f"{client.base_url} did not answer: {_words(error)}") from None


async def measure(client: httpx.AsyncClient, work: Sequence[Job], num_streams: int) -> dict[str, Any]:
    """One row: the work over num_streams streams. Times in milliseconds; None where there is nothing to time."""
    replies: list[Reply] = []
    errors: list[str] = []
    waiting = iter(work)

    async def stream() -> None:
        for job in waiting:
            try:
                replies.append(await ask(client, job))
            except Failed as error:
                errors.append(str(error))
            except httpx.TransportError as error:
                errors.append(_words(error))

    start_s = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(num_streams):
            tasks.create_task(stream())
    wall_s = time.perf_counter() - start_s
    times_per_token_s = [reply.time_per_token_s for reply in replies if reply.time_per_token_s is not None]
    return {
        "streams": num_streams,
        "requests": len(replies),
        "output_tokens_per_s": round(sum(reply.num_tokens for reply in replies) / wall_s, 1),
        "prompt_tokens": sum(reply.num_prompt_tokens for reply in replies),
        "ttft_ms_p50": quantile_ms([reply.ttft_s for reply in replies], 0.5),
        "ttft_ms_p99": quantile_ms([reply.ttft_s for reply in replies], 0.99),
        "time_per_token_ms_p50": quantile_ms(times_per_token_s, 0.5),
        "time_per_token_ms_p99": quantile_ms(times_per_token_s, 0.99),
        "errors": len(errors),
        "first_error": errors[0] if errors else None,
    }


def quantile_ms(values_s: Sequence[float], q: float) -> float | None:
    """The smallest value that at least a share q of all do not exceed."""
    if not values_s:
        return None
    return round(sorted(values_s)[max(0, math.ceil(q * len(values_s)) - 1)] * 1e3, 1)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


async def rows(args: argparse.Namespace) -> AsyncIterator[dict[str, Any]]:
    """Raises Unusable."""
    load = Load(args.model, args.max_tokens, args.prompt_tokens, args.shared_prefix, args.distribution)
    rng = random.Random(args.seed)
    async with httpx.AsyncClient(
        base_url=args.url,
        headers={"authorization": f"Bearer {args.key}"},
        timeout=httpx.Timeout(REPLY_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        limits=httpx.Limits(),  # as many connections as there are streams
        trust_env=False,
    ) as client:
        await check(client, load.models)
        for num_streams in args.streams:
            count = args.requests or 3 * num_streams
            yield await measure(client, list(jobs(load, count, rng)), num_streams)


def table_line(row: dict[str, Any]) -> str:
    line = (
        f"{row['streams']:>4} streams  {row['requests']:>5} requests  {row['output_tokens_per_s']:>7} tokens/s  "
        f"TTFT p50 {row['ttft_ms_p50']} ms, p99 {row['ttft_ms_p99']} ms  "
        f"time per token p50 {row['time_per_token_ms_p50']} ms, p99 {row['time_per_token_ms_p99']} ms  "
        f"errors {row['errors']}"
    )
    return f"{line} ({row['first_error']})" if row["errors"] else line


def parse_arguments(argv: Sequence[str] | None, environ: Mapping[str, str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gateway.bench", description=__doc__)
    add = parser.add_argument
    add("--url", type=_url, default=environ.get("OPENAI_BASE_URL"), help="the server (default: OPENAI_BASE_URL)")
    add("--key", default=environ.get("OPENAI_API_KEY"), help="a tenant's key (default: OPENAI_API_KEY)")
    add("--model", action="append", required=True, help="base or base:adapter; more of them share the requests")
    add("--streams", type=_positive, nargs="+", default=[1, 8, 16, 32], help="requests at a time, one row for each")
    add("--requests", type=_positive, default=None, help="requests of a row (default: 3 for each stream)")
    add("--max-tokens", type=_positive, default=64, help="length of every completion")
    add("--prompt-tokens", type=_positive, default=64, help="words of a prompt, each about a token")
    add("--shared-prefix", type=_count, default=0, help="words that every prompt begins with, besides its own")
    add("--distribution", default="turn", choices=get_args(Distribution), help="of the models; zipf is 1 / rank")
    add("--seed", type=int, default=None, help="the same prompts again, which a server may have cached")
    add("--json", action="store_true", help="one JSON line per row instead of a table")
    args = parser.parse_args(argv)
    if args.url is None or args.key is None:
        missing = "--url or OPENAI_BASE_URL" if args.url is None else "--key or OPENAI_API_KEY"
        parser.error(f"{missing} is needed; `lorikeet serve` writes both variables to demo.env in its data folder")
    return args


def _url(text: str) -> str:
    """OpenAI's base URL, with or without /v1."""
    url = text.rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"must begin with http:// or https://, not {text!r}")
    return url if url.endswith("/v1") else f"{url}/v1"


def _positive(text: str) -> int:
    number = _count(text)
    if not number:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number from 0, not {text!r}")
    return int(text)


async def _print_rows(args: argparse.Namespace) -> int:
    """1 where a request failed."""
    failed = False
    async for row in rows(args):
        print(json.dumps(row) if args.json else table_line(row), flush=True)
        failed = failed or row["errors"] > 0
    return int(failed)


def main(argv: Sequence[str] | None = None) -> int:
    """0: all requests were answered; 1: some were not, or the server cannot be measured; 2: wrong usage."""
    args = parse_arguments(argv, os.environ)
    try:
        return uvloop.run(_print_rows(args))
    except Unusable as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
