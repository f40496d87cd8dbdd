"""`python -m gateway.bench.overhead`: what the gateway itself costs, over an engine that answers at once.

Starts a database, the fake engine and gateways of its own, with authentication, limits and metering on. Prints
latencies at fixed rates, the highest rate, and the processor time of a request. A program, never a timed test.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from gateway.bench.http import connect, post
from gateway.bench.installation import MODEL_NAME, Installation, running
from gateway.bench.open_loop import Connections, as_fast_as_possible, at_rate

CONNECTIONS_PER_GATEWAY = 64
PROMPT = "The old harbor turns green over the river while seven birds sleep."


async def rows(args: argparse.Namespace, installation: Installation) -> AsyncIterator[dict[str, Any]]:
    """One for each rate, then one for as fast as possible."""
    body = msgspec.json.encode(
        {"model": MODEL_NAME, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": args.max_tokens}
    )
    requests = [post("/v1/chat/completions", key, body) for key in installation.keys]
    opened = [await connect("127.0.0.1", port) for _ in range(CONNECTIONS_PER_GATEWAY) for port in installation.ports]
    connections, rng = Connections(opened), random.Random(args.seed)  # noqa: S311 - arrivals are no secret
    try:
        await asyncio.gather(*(connections.ask(request) for request in requests * 4))
        for per_s in args.rates:
            before_s = installation.cpu_s()
            row = await at_rate(connections, requests, per_s, args.seconds, rng)
            yield _with_cpu(row, installation.cpu_s() - before_s, args.seconds)
        before_s = installation.cpu_s()
        row = await as_fast_as_possible(connections, requests, args.streams, args.seconds)
        yield _with_cpu(row, installation.cpu_s() - before_s, args.seconds)
    finally:
        for connection in opened:
            connection.close()


def _with_cpu(row: dict[str, Any], cpu_s: float, seconds: float) -> dict[str, Any]:
    return row | {"cpu_ms_per_request": round(cpu_s / seconds / row["per_s"] * 1e3, 3) if row["per_s"] else None}


def table_line(row: dict[str, Any]) -> str:
    offered = "at most" if row["offered_per_s"] is None else f"{row['offered_per_s']:g}/s"
    return (
        f"{offered:>9}  {row['per_s']:>8} requests/s  p50 {row['ms_p50']} ms  p95 {row['ms_p95']} ms  "
        f"p99 {row['ms_p99']} ms  CPU {row['cpu_ms_per_request']} ms per request  errors {row['errors']}"
    )


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.overhead", description=__doc__)
    add = parser.add_argument
    add("--model-dir", type=Path, required=True, help="a prepared model's folder: its tokenizer and template are used")
    add("--rates", type=float, nargs="*", default=[100.0, 300.0, 1000.0], help="requests per second, one row for each")
    add("--seconds", type=float, default=10.0, help="of each row, the first fifth of which is not counted")
    add("--streams", type=int, default=32, help="requests at a time when the highest rate is looked for")
    add("--gateways", type=int, default=2, help="gateway processes")
    add("--tenants", type=int, default=10, help="keys that the requests use in turn")
    add("--max-tokens", type=int, default=1, help="length of every completion")
    add("--without-limits", action="store_true", help="for comparison: the tenants have none")
    add("--seed", type=int, default=0, help="of the arrivals")
    add("--json", action="store_true", help="one JSON line per row instead of a table")
    return parser.parse_args(argv)


async def _print_rows(args: argparse.Namespace, installation: Installation) -> int:
    """1 where a request failed."""
    failed = False
    async for row in rows(args, installation):
        sys.stdout.write(f"{json.dumps(row) if args.json else table_line(row)}\n")
        sys.stdout.flush()
        failed = failed or row["errors"] > 0
    return int(failed)


def main(argv: Sequence[str] | None = None) -> int:
    """0: all requests were answered; 1: some were not."""
    args = parse_arguments(argv)
    with tempfile.TemporaryDirectory(prefix="lorikeet-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # PostgreSQL may have to run as another user
        with (
            running(
                folder,
                args.model_dir.absolute(),
                num_gateways=args.gateways,
                num_tenants=args.tenants,
                with_limits=not args.without_limits,
            ) as installation,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            return runner.run(_print_rows(args, installation))


if __name__ == "__main__":
    sys.exit(main())
