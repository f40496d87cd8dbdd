"""`python -m gateway.bench`: output tokens per second and latencies of a running server, as clients over HTTP see them.

Needs of the server only OpenAI's streamed completions with vLLM's `ignore_eos`, and starts one of its own only where it
is asked to. A program, never a timed test.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import httpx
import uvloop

from gateway.bench.load import Distribution, Load, Unusable, check, jobs, measure
from gateway.bench.own_server import own_server

CONNECT_TIMEOUT_S = 5.0
REPLY_TIMEOUT_S = 600.0


async def rows(args: argparse.Namespace) -> AsyncIterator[dict[str, Any]]:
    """Yield one measured row for each number of streams. Raises Unusable: when the server cannot be measured."""
    load = Load(args.model, args.max_tokens, args.prompt_tokens, args.shared_prefix, args.distribution)
    rng = random.Random(args.seed)  # noqa: S311 - prompts are no secret
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
    """Return a row as a line of text."""
    line = (
        f"{row['streams']:>4} streams  {row['requests']:>5} requests  {row['output_tokens_per_s']:>7} tokens/s  "
        f"TTFT p50 {row['ttft_ms_p50']} ms, p99 {row['ttft_ms_p99']} ms  "
        f"time per token p50 {row['time_per_token_ms_p50']} ms, p99 {row['time_per_token_ms_p99']} ms  "
        f"errors {row['errors']}"
    )
    return f"{line} ({row['first_error']})" if row["errors"] else line


def parse_arguments(argv: Sequence[str] | None, environ: Mapping[str, str]) -> argparse.Namespace:
    """Parse the command line, whose defaults the environment may give.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m gateway.bench", description=__doc__)
    add = parser.add_argument
    add("--url", type=_url, default=environ.get("OPENAI_BASE_URL"), help="the server (default: OPENAI_BASE_URL)")
    add("--key", default=environ.get("OPENAI_API_KEY"), help="a tenant's key (default: OPENAI_API_KEY)")
    add("--serve", type=Path, metavar="FOLDER", help="start `lorikeet serve` over this data folder and measure that")
    add("--model", action="append", required=True, help="base or base:adapter; more of them share the requests")
    add("--streams", type=_positive, nargs="+", default=[1, 8, 16, 32], help="requests at a time, one row for each")
    add("--requests", type=_positive, default=None, help="requests of a row (default: 3 for each stream)")
    add("--max-tokens", type=_positive, default=64, help="length of every completion")
    add("--prompt-tokens", type=_positive, default=64, help="words of a prompt, each about a token")
    add("--shared-prefix", type=_parse_count, default=0, help="words that every prompt begins with, besides its own")
    add(
        "--distribution",
        default="turn",
        choices=get_args(Distribution),
        help="distribution of requests over models; zipf is 1 / rank",
    )
    add(
        "--seed",
        type=int,
        default=None,
        help="seed of the prompts: the same prompts again, which a server may have cached",
    )
    add("--json", action="store_true", help="one JSON line per row instead of a table")
    args = parser.parse_args(argv)
    if args.serve is None and (args.url is None or args.key is None):
        missing = "--url or OPENAI_BASE_URL" if args.url is None else "--key or OPENAI_API_KEY"
        parser.error(f"{missing} is needed; `lorikeet serve` writes both variables to demo.env in its data folder")
    return args


def _url(text: str) -> str:
    """Return OpenAI's base URL from a URL given with or without /v1."""
    url = text.rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"must begin with http:// or https://, not {text!r}")
    return url if url.endswith("/v1") else f"{url}/v1"


def _positive(text: str) -> int:
    number = _parse_count(text)
    if not number:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _parse_count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number from 0, not {text!r}")
    return int(text)


async def _print_rows(args: argparse.Namespace) -> int:
    """Print the rows and return the exit status: 1 where a request failed."""
    failed = False
    async for row in rows(args):
        sys.stdout.write(f"{json.dumps(row) if args.json else table_line(row)}\n")
        sys.stdout.flush()
        failed = failed or row["errors"] > 0
    return int(failed)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the server that the arguments name; return 0 if all requests were answered, 2 for wrong usage, else 1.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    args = parse_arguments(argv, os.environ)
    try:
        with contextlib.ExitStack() as stack:
            if args.serve is not None:
                access = stack.enter_context(own_server(args.serve.absolute()))
                args.url, args.key = access["OPENAI_BASE_URL"], access["OPENAI_API_KEY"]
            runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
            return runner.run(_print_rows(args))
    except Unusable as error:
        sys.stderr.write(f"bench: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
