"""`python -m gateway.bench.streams`: what a streamed chat costs the gateway, and where.

Over the fake engine, with authentication, limits and metering on: processor time of one gateway for a chat of a
kilobyte and each of its chunks, with the rooms where it goes; then how much longer a client of the gateway waits for a
token than one that speaks the engine's protocol itself. A program, never a timed test.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from engine.protocol import Final, GenerateRequest, SamplingParams, UsageRecord
from gateway.backends.engine.client import EngineBackend
from gateway.backends.engine.model import EngineModel
from gateway.backends.usage import Acknowledged, Count
from gateway.bench.http import connect, post
from gateway.bench.installation import MODEL_NAME, Installation, running_installation
from gateway.bench.load import WORDS, quantile_ms
from gateway.bench.open_loop import Connections
from gateway.observability.metrics import configure_logging

PATH = "/v1/chat/completions"
PROMPT_BYTES = 1024
MAX_CONNECTIONS = 256
STEPS_PER_S = 100
"""Steps of the engine per second: slow enough that each token is a chunk of its own."""

WARM_UP_S = 2.0
TOP = 20


class ForgetfulSink:
    """A sink that forgets all usage, and tells engines to do the same."""

    def __init__(self) -> None:
        self._telling: set[asyncio.Task[None]] = set()

    def dispatched(self, request: GenerateRequest, engine_id: str, *, num_prompt_tokens: int | None = None) -> None:
        """Do nothing with a request that was sent.

        num_prompt_tokens: not read.
        """

    def progressed(self, counts: list[Count]) -> None:
        """Do nothing with counts of tokens."""

    def record(
        self,
        usage: UsageRecord,
        *,
        engine_id: str,
        source: Acknowledged | None,
        ttft_ms: float | None,
        latency_ms: float | None,
        refused: bool = False,
    ) -> None:
        """Record nothing, and tell the engine that the usage is durable, so that the engine forgets it."""
        if source is not None:
            telling = asyncio.create_task(source.acknowledge([(usage.request_id, usage.attempt)]))
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)

    def superseded(self, usage: UsageRecord, *, engine_id: str, source: Acknowledged | None) -> None:
        """Do nothing with superseded usage.

        engine_id, source: not read.
        """

    def given_up(self, request_ids: Collection[str]) -> None:
        """Do nothing: no record of an engine is waited for."""


def chat(rng: random.Random, max_tokens: int, *, stream: bool) -> bytes:
    """Return the body of a chat request with a prompt of about PROMPT_BYTES.

    stream: True: the reply is streamed.
    """
    text = ""
    while len(text) < PROMPT_BYTES - 100:
        text += f"{rng.choice(WORDS)} "
    messages = [{"role": "user", "content": text}]
    body = {"model": MODEL_NAME, "messages": messages, "max_tokens": max_tokens, "stream": stream, "ignore_eos": True}
    return msgspec.json.encode(body)


async def used_us(installation: Installation, requests: Sequence[bytes], rate: float, seconds: float) -> float:
    """Return microseconds of the gateway's processor time for one request, beyond what an idle gateway uses.

    rate: the requests a second. seconds: how long they are sent.
    """
    connections = Connections([await connect("127.0.0.1", installation.ports[0]) for _ in range(MAX_CONNECTIONS)])
    try:
        if set(await asyncio.gather(*map(connections.ask, requests))) != {200}:
            raise RuntimeError("the gateway does not answer as it should")
        await asyncio.sleep(WARM_UP_S)
        before_s = installation.cpu_s()
        await asyncio.sleep(seconds / 2)
        idle_share = (installation.cpu_s() - before_s) / (seconds / 2)
        for gateway in installation.gateways:
            gateway.send_signal(signal.SIGUSR1)
        before_s, start_s = installation.cpu_s(), time.perf_counter()
        asked, due = itertools.cycle(requests), range(round(rate * seconds))
        async with asyncio.TaskGroup() as group:
            for _ in due:
                group.create_task(connections.ask(next(asked)))
                await asyncio.sleep(1 / rate)
        return (installation.cpu_s() - before_s - idle_share * (time.perf_counter() - start_s)) / len(due) * 1e6
    finally:
        connections.close()


async def overhead(installation: Installation, args: argparse.Namespace, rng: random.Random) -> dict[str, Any]:
    """Measure the latency of one token through the gateway, and from the engine itself, in turn; return the row in ms.

    The engine's client tokenizes the same text. Requests are sent one right after the other (`in_a_row`), then with
    pauses (`apart`), after which the processes have cold caches.
    """
    model = EngineModel.load(args.model_dir)
    tokenizer = model.tokenizer
    direct = EngineBackend(installation.engine_endpoint, database_id="none", model=model, sink=ForgetfulSink())
    direct.start()
    connection = await connect("127.0.0.1", installation.ports[0])
    request = post(PATH, installation.keys[0], chat(rng, 1, stream=False))
    text = chat(rng, 1, stream=False).decode()

    async def latencies_s(gap_s: float, name: str) -> tuple[float, float]:
        await asyncio.sleep(gap_s)
        started_s = time.perf_counter()
        await connection.ask(request)
        asked_s = time.perf_counter()
        await asyncio.sleep(gap_s)
        began_s = time.perf_counter()
        await _one_token(direct, tokenizer.encode_text(text), name)
        return asked_s - started_s, time.perf_counter() - began_s

    found: dict[str, Any] = {"calls": args.calls}
    try:
        while not direct.health().ready:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.05)
        for name, gap_s in (("in_a_row", 0.0), ("apart", 1 / args.low_rate)):
            pairs = [await latencies_s(gap_s, f"{name}-{number}") for number in range(args.calls + args.calls // 10)]
            through_s, direct_s = map(list, zip(*pairs[args.calls // 10 :], strict=True))
            found[name] = {
                "through_ms_p50": quantile_ms(through_s, 0.5, digits=3),
                "direct_ms_p50": quantile_ms(direct_s, 0.5, digits=3),
                "overhead_ms_p50": quantile_ms(
                    [through - alone for through, alone in zip(through_s, direct_s, strict=True)], 0.5, digits=3
                ),
            }
    finally:
        connection.close()
        await direct.stop()
    return found


async def _one_token(backend: EngineBackend, token_ids: list[int], request_id: str) -> None:
    asked = GenerateRequest(request_id, token_ids, SamplingParams(max_tokens=1), tenant="bench")
    async for item in backend.deltas(asked):
        if isinstance(item, Final):
            return


def costs(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the processor time for a request and for a chunk, and the profile of the longer streams."""
    profile = folder / "profile.json"
    rng = random.Random(args.seed)  # noqa: S311 - prompts are no secret
    with _start_installation(args, folder, ("--tokens-per-s", str(STEPS_PER_S)), profile) as installation:
        used = {}
        for num_chunks in (1, args.chunks):
            requests = [post(PATH, key, chat(rng, num_chunks, stream=True)) for key in installation.keys]
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                used[num_chunks] = runner.run(used_us(installation, requests, args.rate, args.seconds))
    found = json.loads(profile.read_bytes())
    total = sum(count for _, count in found["rooms"])
    return {
        "chunks": args.chunks,
        "us_per_request_of_1_chunk": round(used[1]),
        "us_per_request": round(used[args.chunks]),
        "us_per_chunk": round((used[args.chunks] - used[1]) / (args.chunks - 1), 1),
        **{name: {place: round(count / total, 3) for place, count in found[name][:TOP]} for name in found},
    }


def _start_installation(
    args: argparse.Namespace, folder: Path, engine_flags: Sequence[str], profile: Path | None = None
) -> AbstractContextManager[Installation]:
    folder.mkdir(mode=0o711)
    return running_installation(
        folder,
        args.model_dir,
        num_gateways=1,
        num_tenants=args.tenants,
        with_limits=True,
        engine_flags=(*engine_flags, "--max-num-seqs", str(MAX_CONNECTIONS)),
        gateway=("gateway.cli", "gateway") if profile is None else ("gateway.bench.profiled", str(profile), "gateway"),
    )


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.streams", description=__doc__)
    add = parser.add_argument
    add("--model-dir", type=Path, required=True, help="a prepared model's folder: its tokenizer and template are used")
    add("--chunks", type=int, default=64, help="tokens of a streamed chat, each a chunk")
    add("--rate", type=float, default=20.0, help="requests per second while processor time is measured")
    add("--seconds", type=float, default=10.0, help="seconds of each measurement of processor time")
    add("--calls", type=int, default=200, help="calls of one token, to find the overhead")
    add("--low-rate", type=float, default=20.0, help="requests per second of those that come one by one")
    add("--tenants", type=int, default=10, help="keys that the requests use in turn")
    add("--seed", type=int, default=0, help="seed of the prompts")
    add("--json", action="store_true", help="one JSON object instead of lines")
    args = parser.parse_args(argv)
    args.model_dir = args.model_dir.absolute()
    return args


def lines(found: dict[str, Any]) -> list[str]:
    """Return the figures as lines of text."""
    shown = [
        f"{found['us_per_request']} us of processor time for a chat of 1 kB and {found['chunks']} chunks: "
        f"{found['us_per_request_of_1_chunk']} us with one chunk, and {found['us_per_chunk']} us for each more",
        *(
            f"one token, {name.replace('_', ' ')}: {each['through_ms_p50']} ms through the gateway, "
            f"{each['direct_ms_p50']} ms from the engine; {each['overhead_ms_p50']} ms between them "
            f"(p50 of {found['calls']})"
            for name, each in ((name, found[name]) for name in ("in_a_row", "apart"))
        ),
    ]
    for name in ("rooms", "functions"):
        shown.append(f"{name}, by share of that time:")
        shown += [f"  {share:6.1%}  {place}" for place, share in found[name].items()]
    return shown


def main(argv: Sequence[str] | None = None) -> int:
    """Print the cost of a streamed chat; return the exit status.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    args = parse_arguments(argv)
    configure_logging("error")
    with tempfile.TemporaryDirectory(prefix="lorikeet-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # PostgreSQL may have to run as another user
        found = costs(args, folder / "costs")
        with (
            _start_installation(args, folder / "overhead", ()) as installation,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            found |= runner.run(overhead(installation, args, random.Random(args.seed)))  # noqa: S311
    sys.stdout.write(json.dumps(found) if args.json else "\n".join(lines(found)))
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
