"""`python -m gateway.bench.responses`: what a response costs beside a chat of the same text.

Over the fake engine, with authentication, limits and metering on: processor time of one gateway for a streamed token,
and how long a client waits for a reply of one token, not stored and stored. All are asked in turns, so that what else
the machine does falls on each alike. A program, never a timed test.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from gateway.bench.http import connect, post
from gateway.bench.installation import Installation, cpu_s, running_installation
from gateway.bench.load import quantile_ms
from gateway.bench.open_loop import Connections
from gateway.bench.streams import MAX_CONNECTIONS, PATH, STEPS_PER_S, chat
from gateway.db.pool import Database
from gateway.observability.metrics import configure_logging

RESPONSES = "/v1/responses"
STORE_DAYS = "UPDATE projects SET store_days = 1"
SETTLED_S = 1.0
"""The time for which a gateway is left alone before its processor time is measured."""

KINDS = ("chat", "not stored", "stored")


def request(kind: str, key: str, rng: random.Random, max_tokens: int, *, stream: bool) -> bytes:
    """Return the bytes of a request for some tokens, by one of KINDS.

    kind: "chat", or a response: "stored" or not. stream: True: the reply is streamed.
    """
    asked = chat(rng, max_tokens, stream=stream)
    if kind == "chat":
        return post(PATH, key, asked)
    body = msgspec.json.decode(asked)
    body |= {"input": body.pop("messages"), "max_output_tokens": body.pop("max_tokens"), "store": kind == "stored"}
    return post(RESPONSES, key, msgspec.json.encode(body))


async def used_us(
    installation: Installation, gateway: int, requests: Sequence[bytes], rate: float, seconds: float
) -> float:
    """Return the microseconds of processor time that one gateway takes for a request.

    gateway: the index of the gateway. rate: the requests a second. seconds: how long they are sent.
    """
    port, pid = installation.ports[gateway], installation.gateways[gateway].pid
    connections = Connections([await connect("127.0.0.1", port) for _ in range(MAX_CONNECTIONS)])
    try:
        if set(await asyncio.gather(*map(connections.ask, requests))) != {200}:
            raise RuntimeError("the gateway does not answer as it should")
        await asyncio.sleep(SETTLED_S)
        before_s, num_asked = cpu_s(pid), round(rate * seconds)
        async with asyncio.TaskGroup() as group:
            for asked in itertools.islice(itertools.cycle(requests), num_asked):
                group.create_task(connections.ask(asked))
                await asyncio.sleep(1 / rate)
        return (cpu_s(pid) - before_s) / num_asked * 1e6
    finally:
        connections.close()


async def per_token_us(installation: Installation, args: argparse.Namespace, rng: random.Random) -> dict[str, Any]:
    """Return the processor time of a streamed token by kind, and its ratio to that of a chat in the same round.

    Each kind is asked of a gateway of its own, all at the same time, and of another one in the next round.
    """

    async def of_tokens(number: int, num_tokens: int) -> list[float]:
        asked = ([request(kind, key, rng, num_tokens, stream=True) for key in installation.keys] for kind in KINDS)
        return await asyncio.gather(
            *(
                used_us(installation, (number + place) % len(KINDS), each, args.rate, args.seconds)
                for place, each in enumerate(asked)
            )
        )

    rounds: list[dict[str, float]] = []
    for number in range(args.rounds):
        one, many = await of_tokens(number, 1), await of_tokens(number, args.chunks)
        each = [(of_many - of_one) / (args.chunks - 1) for of_one, of_many in zip(one, many, strict=True)]
        rounds.append(dict(zip(KINDS, each, strict=True)))
    found: dict[str, Any] = {}
    for kind in KINDS:
        ratios = sorted(used[kind] / used["chat"] for used in rounds)
        found[kind] = {
            "us_per_token": round(statistics.median(used[kind] for used in rounds), 1),
            "beside_chat": round(statistics.median(ratios), 3),
            "beside_chat_each": [round(each, 2) for each in ratios],
        }
    return found


async def latencies(installation: Installation, args: argparse.Namespace, rng: random.Random) -> dict[str, Any]:
    """Return the median milliseconds for which a client waits for one token, by kind.

    Return as well the difference from the chat that was asked just before or after.
    """
    connection = await connect("127.0.0.1", installation.ports[0])
    took_s: dict[str, list[float]] = {kind: [] for kind in KINDS}
    try:
        for number in range(args.calls + args.calls // 10):
            for kind in random.Random(number).sample(KINDS, len(KINDS)):  # noqa: S311 - an order is no secret
                asked = request(kind, installation.keys[0], rng, 1, stream=False)
                started_s = time.perf_counter()
                if connection.is_closed:  # on a machine that stood still, as one that was left idle
                    connection = await connection.reopen()
                    started_s = time.perf_counter()
                if await connection.ask(asked) != 200:
                    raise RuntimeError("the gateway does not answer as it should")
                took_s[kind].append(time.perf_counter() - started_s)
    finally:
        connection.close()
    counted = {kind: each[args.calls // 10 :] for kind, each in took_s.items()}
    return {
        kind: {
            "ms_p50": quantile_ms(each, 0.5, digits=3),
            "more_than_chat_ms_p50": quantile_ms(
                [one - other for one, other in zip(each, counted["chat"], strict=True)], 0.5, digits=3
            ),
        }
        for kind, each in counted.items()
    }


Measure = Callable[[Installation, argparse.Namespace, random.Random], Coroutine[Any, Any, dict[str, Any]]]


def measured(
    measure: Measure, args: argparse.Namespace, folder: Path, engine_flags: Sequence[str], num_gateways: int = 1
) -> dict[str, Any]:
    """Return the figures that a measurement takes at an installation of its own.

    num_gateways: the number of its gateway processes.
    """
    folder.mkdir(mode=0o711)
    flags = (*engine_flags, "--max-num-seqs", str(MAX_CONNECTIONS * num_gateways))
    with running_installation(
        folder,
        args.model_dir,
        num_gateways=num_gateways,
        num_tenants=args.tenants,
        with_limits=True,
        engine_flags=flags,
    ) as installation:
        asyncio.run(enable_storing(installation.dsn))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(measure(installation, args, random.Random(args.seed)))  # noqa: S311


async def enable_storing(dsn: str) -> None:
    """Set all projects to store responses."""
    async with await Database.connect(dsn) as database, database.acquire() as conn:
        await conn.execute(STORE_DAYS)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.responses", description=__doc__)
    add = parser.add_argument
    add("--model-dir", type=Path, required=True, help="a prepared model's folder: its tokenizer and template are used")
    add("--chunks", type=int, default=256, help="tokens of a stream, each an event")
    add("--rate", type=float, default=10.0, help="streams per second while processor time is measured")
    add("--seconds", type=float, default=4.0, help="seconds of each measurement of processor time")
    add("--rounds", type=int, default=9, help="measurements of processor time, of all kinds each")
    add("--calls", type=int, default=500, help="replies of one token of each kind")
    add("--tenants", type=int, default=10, help="keys that the streams use in turn")
    add("--seed", type=int, default=0, help="seed of the prompts")
    add("--json", action="store_true", help="one JSON object instead of lines")
    args = parser.parse_args(argv)
    args.model_dir = args.model_dir.absolute()
    return args


def lines(found: dict[str, Any]) -> list[str]:
    """Return the figures as lines of text."""
    return [
        *(
            f"one token, {kind}: {each['ms_p50']} ms, {each['more_than_chat_ms_p50']:+} ms beside chat "
            f"(p50 of {found['calls']})"
            for kind, each in found["latency"].items()
        ),
        *(
            f"a streamed token, {kind}: {each['us_per_token']} us of processor time, {each['beside_chat']} of chat's "
            f"(rounds: {', '.join(map(str, each['beside_chat_each']))})"
            for kind, each in found["processor"].items()
        ),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the cost of a response beside a chat; return the exit status.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    args = parse_arguments(argv)
    configure_logging("error")
    with tempfile.TemporaryDirectory(prefix="lorikeet-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # PostgreSQL may have to run as another user
        found = {
            "calls": args.calls,
            "latency": measured(latencies, args, folder / "latency", ()),
            "processor": measured(
                per_token_us, args, folder / "cost", ("--tokens-per-s", str(STEPS_PER_S)), num_gateways=len(KINDS)
            ),
        }
    sys.stdout.write(json.dumps(found) if args.json else "\n".join(lines(found)))
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
