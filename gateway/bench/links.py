"""`python -m gateway.bench.links`: what it costs to reach engines over TCP, as on other machines, beside local sockets.

Two installations over the fake engine run at the same time, one that reaches its engine by a socket of this machine,
one over TCP with encryption (`engine.curve`). Prints how much longer a client waits for a reply of one token, and the
processor time of the gateway and of the engine for a streamed token. A program, never a timed test.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import uvloop

from gateway.bench.http import connect, post
from gateway.bench.installation import Installation, cpu_s, running_installation
from gateway.bench.load import quantile_ms
from gateway.bench.open_loop import Connections
from gateway.bench.streams import MAX_CONNECTIONS, PATH, STEPS_PER_S, chat
from gateway.observability.metrics import configure_logging

WAYS = ("socket", "encrypted TCP")
SETTLED_S = 1.0
"""The time for which gateways are left alone before their processor time is measured."""

MAX_MORE_MS, MAX_RATIO = 0.3, 1.1


async def waits(installations: Sequence[Installation], num_calls: int, rng: random.Random) -> list[list[float]]:
    """Ask for one token by each way, in turns; return the seconds that a client waited, a list for each way."""
    connections = [await connect("127.0.0.1", each.ports[0]) for each in installations]
    took_s: list[list[float]] = [[] for _ in installations]
    try:
        for number in range(num_calls + num_calls // 10):
            places = [0, 1] if number % 2 else [1, 0]
            for place in places:
                asked = post(PATH, installations[place].keys[0], chat(rng, 1, stream=False))
                if connections[place].is_closed:
                    connections[place] = await connections[place].reopen()
                started_s = time.perf_counter()
                if await connections[place].ask(asked) != 200:
                    raise RuntimeError("the gateway does not answer as it should")
                took_s[place].append(time.perf_counter() - started_s)
    finally:
        for connection in connections:
            connection.close()
    return [each[num_calls // 10 :] for each in took_s]


async def used_us(
    installation: Installation, requests: Sequence[bytes], rate: float, seconds: float
) -> tuple[float, float]:
    """Return the microseconds of processor time for one request: the gateway's, and the engine's.

    rate: the requests a second. seconds: how long they are sent.
    """
    pids = (installation.gateways[0].pid, installation.engines[0].pid)
    port = installation.ports[0]
    connections = Connections([await connect("127.0.0.1", port) for _ in range(MAX_CONNECTIONS)])
    try:
        if set(await asyncio.gather(*map(connections.ask, requests))) != {200}:
            raise RuntimeError("the gateway does not answer as it should")
        await asyncio.sleep(SETTLED_S)
        before_s, num_asked = [*map(cpu_s, pids)], round(rate * seconds)
        async with asyncio.TaskGroup() as group:
            for number in range(num_asked):
                group.create_task(connections.ask(requests[number % len(requests)]))
                await asyncio.sleep(1 / rate)
        gateway, engine = ((cpu_s(pid) - before) / num_asked * 1e6 for pid, before in zip(pids, before_s, strict=True))
        return gateway, engine
    finally:
        connections.close()


async def tokens_us(
    installations: Sequence[Installation], args: argparse.Namespace, rng: random.Random
) -> list[list[tuple[float, float]]]:
    """Return the processor time of a streamed token by each way, round by round: the gateway's and the engine's."""

    async def of(num_tokens: int) -> list[tuple[float, float]]:
        return await asyncio.gather(
            *(
                used_us(
                    each,
                    [post(PATH, key, chat(rng, num_tokens, stream=True)) for key in each.keys],
                    args.rate,
                    args.seconds,
                )
                for each in installations
            )
        )

    found: list[list[tuple[float, float]]] = [[] for _ in installations]
    for _ in range(args.rounds):
        one, many = await of(1), await of(args.chunks)
        for place, (least, most) in enumerate(zip(one, many, strict=True)):
            gateway, engine = ((after - before) / (args.chunks - 1) for before, after in zip(least, most, strict=True))
            found[place].append((gateway, engine))
    return found


@contextmanager
def pair(folder: Path, args: argparse.Namespace, engine_flags: Sequence[str]) -> Iterator[list[Installation]]:
    """Run an installation for each way of WAYS, side by side, and yield the installations in that order."""
    with ExitStack() as stack:
        installations = []
        for number in range(len(WAYS)):
            (own := folder / str(number)).mkdir(mode=0o711, parents=True)
            folder.chmod(0o711)
            site = running_installation(
                own,
                args.model_dir,
                num_gateways=1,
                num_tenants=args.tenants,
                with_limits=True,
                over_tcp=bool(number),
                engine_flags=("--max-num-seqs", str(MAX_CONNECTIONS), *engine_flags),
            )
            installations.append(stack.enter_context(site))
        yield installations


def figures(took_s: Sequence[Sequence[float]], used: Sequence[Sequence[tuple[float, float]]]) -> dict[str, Any]:
    """Return all figures, and whether each holds its bound.

    took_s: the seconds that clients waited, a list for each way. used: the microseconds of processor time of the
    gateway and of the engine for a streamed token, round by round, a list for each way.
    """
    more_ms = 1e3 * statistics.median(encrypted - plain for plain, encrypted in zip(*took_s, strict=True))
    ratios: dict[str, list[float]] = {}
    for number, process in enumerate(("gateway", "engine")):
        ratios[process] = sorted(
            encrypted[number] / plain[number] for plain, encrypted in zip(used[0], used[1], strict=True)
        )
    return {
        "ms_p50": {way: quantile_ms(each, 0.5, digits=3) for way, each in zip(WAYS, took_s, strict=True)},
        "more_ms_p50": round(more_ms, 3),
        "us_per_token": {
            process: {
                way: round(statistics.median(each[number] for each in of_way), 1)
                for way, of_way in zip(WAYS, used, strict=True)
            }
            for number, process in enumerate(("gateway", "engine"))
        },
        "ratios": {process: [round(each, 3) for each in of_rounds] for process, of_rounds in ratios.items()},
        "holds": {
            f"p50 + <= {MAX_MORE_MS} ms": more_ms <= MAX_MORE_MS,
            f"gateway's processor time of a token <= {MAX_RATIO}x": statistics.median(ratios["gateway"]) <= MAX_RATIO,
        },
    }


def lines(found: dict[str, Any]) -> list[str]:
    """Return the figures in words."""
    shown = [f"one token by {way}: {ms} ms at the median" for way, ms in found["ms_p50"].items()]
    shown.append(f"by {WAYS[1]} a client waits {found['more_ms_p50']:+} ms longer at the median of pairs")
    for process, by_way in found["us_per_token"].items():
        ratios = found["ratios"][process]
        shown.append(
            f"a streamed token in the {process}: {', '.join(f'{us} us by {way}' for way, us in by_way.items())}; "
            f"ratio {statistics.median(ratios):.3f} (rounds: {', '.join(map(str, ratios))})"
        )
    return [*shown, *(f"{'PASS' if holds else 'FAIL'}  {bound}" for bound, holds in found["holds"].items())]


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.links", description=__doc__)
    add = parser.add_argument
    add("--model-dir", type=Path, required=True, help="a prepared model's folder: its tokenizer and template are used")
    add("--chunks", type=int, default=256, help="tokens of a stream, each an event")
    add("--rate", type=float, default=10.0, help="streams per second while processor time is measured")
    add("--seconds", type=float, default=4.0, help="seconds of each measurement of processor time")
    add("--rounds", type=int, default=7, help="measurements of processor time")
    add("--calls", type=int, default=500, help="replies of one token by each way")
    add("--tenants", type=int, default=10, help="keys that the streams use in turn")
    add("--seed", type=int, default=0, help="seed of the prompts")
    add("--json", action="store_true", help="one JSON object instead of lines")
    args = parser.parse_args(argv)
    args.model_dir = args.model_dir.absolute()
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark from the command line; return 0, or 1 where a bound does not hold.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    args = parse_arguments(argv)
    configure_logging("error")
    with (
        tempfile.TemporaryDirectory(prefix="lorikeet-bench-") as name,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        folder = Path(name)
        folder.chmod(0o711)  # PostgreSQL may have to run as another user
        rng = random.Random(args.seed)  # noqa: S311 - prompts are no secrets
        with pair(folder / "fast", args, ()) as installations:
            took_s = runner.run(waits(installations, args.calls, rng))
        with pair(folder / "paced", args, ("--tokens-per-s", str(STEPS_PER_S))) as installations:
            found = figures(took_s, runner.run(tokens_us(installations, args, rng)))
    sys.stdout.write(json.dumps(found) if args.json else "\n".join(lines(found)))
    sys.stdout.write("\n")
    return 0 if all(found["holds"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
