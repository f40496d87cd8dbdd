"""`python -m gateway.bench.overhead`: what the gateway itself costs, over an engine that answers at once.

Starts a database, the fake engine and gateways of its own, with authentication, limits and metering on. Prints
latencies at fixed rates, the highest rate, and the processor time of a request; and the same of other gateways that
are installed in the folder of peers, before an upstream that answers at once. A program, never a timed test.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from gateway.bench.http import connect, post
from gateway.bench.installation import MODEL_NAME, Installation, running_installation
from gateway.bench.load import WORDS
from gateway.bench.open_loop import Connections, as_fast_as_possible, at_rate
from gateway.bench.peers.running import PEERS, RunningPeer, running_peer, running_upstream

CONNECTIONS_PER_GATEWAY = 64
SATURATED_MS = 500.0
SWITCH_INTERVAL_S = 1e-4
"""Seconds between switches of threads: one thread makes the arrivals, and must not wait for the thread of the event
loop."""
PATH = "/v1/chat/completions"
PROMPT = "The old harbor turns green over the river while seven birds sleep."
PROMPTS = ("question", "text", "conversation")
"""The kinds of prompts: a short question, a text of a kilobyte of which nothing was sent before, and a conversation
with the system prompt of all others, which grows by a turn with each request of its tenant."""

MAX_TEXTS = 10_000
SYSTEM_WORDS, TEXT_WORDS, TURN_WORDS, NUM_TURNS = 300, 200, 60, 8


class Server(msgspec.Struct, frozen=True):
    """A gateway to be measured."""

    name: str
    prompts: str
    """The kind of the prompts."""
    ports: Sequence[int]
    """The ports, to which requests go in turn."""
    requests: Iterator[bytes]
    """Requests without end. No prompt is sent twice, though two may begin alike."""
    cpu_s: Callable[[], float]
    """The function that returns the seconds of processor time that the gateway has used."""


async def rows(args: argparse.Namespace, server: Server) -> AsyncIterator[dict[str, Any]]:
    """Yield a row for each rate, then one for as fast as possible.

    The first rate that the server does not keep up with is the last.
    """
    opened = [await connect("127.0.0.1", port) for _ in range(CONNECTIONS_PER_GATEWAY) for port in server.ports]
    connections, rng = Connections(opened), random.Random(args.seed)  # noqa: S311 - arrivals are no secret
    requests = server.requests
    try:
        await asyncio.gather(*(connections.ask(request) for request in itertools.islice(requests, 4 * args.tenants)))
        for per_s in args.rates:
            before_s = server.cpu_s()
            row = await at_rate(connections, requests, per_s, args.seconds, rng)
            yield _complete(row, server, before_s, args.seconds)
            if row["ms_p50"] is None or row["ms_p50"] > SATURATED_MS:
                break
        before_s = server.cpu_s()
        row = await as_fast_as_possible(connections, requests, args.streams, args.seconds)
        yield _complete(row, server, before_s, args.seconds)
    finally:
        connections.close()


def _complete(row: dict[str, Any], server: Server, before_s: float, seconds: float) -> dict[str, Any]:
    cpu_ms = (server.cpu_s() - before_s) / seconds * 1e3
    per_request = round(cpu_ms / row["per_s"], 3) if row["per_s"] else None
    return {"server": server.name, "prompts": server.prompts} | row | {"cpu_ms_per_request": per_request}


def table_line(row: dict[str, Any]) -> str:
    """Return a row as a line of text."""
    offered = "at most" if row["offered_per_s"] is None else f"{row['offered_per_s']:g}/s"
    latencies = "  ".join(f"{name} {row[f'ms_{name}']} ms" for name in ("p50", "p95", "p99"))
    return (
        f"{row['server']:<9}  {row['prompts']:<12}  {offered:>9}  {row['per_s']:>8} requests/s  {latencies}  "
        f"CPU {row['cpu_ms_per_request']} ms per request  errors {row['errors']}"
    )


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.overhead", description=__doc__)
    add = parser.add_argument
    add("--model-dir", type=Path, required=True, help="a prepared model's folder: its tokenizer and template are used")
    add("--rates", type=float, nargs="*", default=[100.0, 300.0, 1000.0], help="requests per second, one row for each")
    add("--seconds", type=float, default=10.0, help="seconds of each row, the first fifth of which is not counted")
    add("--streams", type=int, default=32, help="requests at a time when the highest rate is looked for")
    add("--gateways", type=int, default=2, help="gateway processes")
    add("--replicas", type=int, default=1, help="engines of the pool that the gateways choose among")
    add("--tenants", type=int, default=10, help="keys that the requests use in turn")
    add("--prompts", nargs="+", choices=PROMPTS, default=PROMPTS, help="kinds of prompts, for our own gateways")
    add("--max-tokens", type=int, default=1, help="length of every completion")
    add("--without-limits", action="store_true", help="for comparison: no tenant has a limit")
    add("--peers", type=Path, default=Path("build/peers"), help="where other gateways are installed, if any are")
    add("--seed", type=int, default=0, help="seed of the arrivals")
    add("--json", action="store_true", help="one JSON line per row instead of a table")
    return parser.parse_args(argv)


def our_server(installation: Installation, max_tokens: int, prompts: str = "question") -> Server:
    """Return our own gateways as a server to measure, with requests by all keys in turn.

    prompts: the kind of prompts: `question`: a short one; `text`: a long one; else conversations that grow.
    """
    keys, bodies = itertools.cycle(installation.keys), bodies_of(max_tokens, prompts, len(installation.keys))
    requests = (post(PATH, key, body) for key, body in zip(keys, bodies, strict=False))
    return Server("lorikeet", prompts, installation.ports, requests, installation.cpu_s)


def peer_server(peer: RunningPeer, bodies: Iterator[bytes]) -> Server:
    """Return another gateway as a server to measure."""
    return Server(
        peer.name, "question", [peer.port], (post(PATH, peer.key, body, peer.headers) for body in bodies), peer.cpu_s
    )


def bodies_of(max_tokens: int, prompts: str = "question", num_tenants: int = 1) -> Iterator[bytes]:
    """Yield bodies of chats without end, each with another prompt, of all tenants in turn.

    prompts: the kind of prompts: `question`: a short one; `text`: a long one; else conversations that grow.
    """
    for number in itertools.count():
        messages = _messages(prompts, *divmod(number, num_tenants))
        yield msgspec.json.encode({"model": MODEL_NAME, "messages": messages, "max_tokens": max_tokens})


def _messages(prompts: str, number: int, tenant: int) -> list[dict[str, str]]:
    """Return the messages of a tenant's request with a number."""
    if prompts == "question":
        return [{"role": "user", "content": f"{PROMPT} {number:07}.{tenant}"}]
    if prompts == "text":
        return [{"role": "user", "content": _text(f"{number}.{tenant}", TEXT_WORDS)}]
    conversation, turn = divmod(number, NUM_TURNS)
    said = [_text(f"{conversation}.{tenant}.{place}", TURN_WORDS) for place in range(2 * turn + 1)]
    messages = [{"role": "system", "content": _text("system", SYSTEM_WORDS)}]
    return messages + [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(said)]


@lru_cache(MAX_TEXTS)
def _text(seed: str, num_words: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=num_words))  # noqa: S311 - prompts are no secret


def print_rows(args: argparse.Namespace, server: Server) -> bool:
    """Print the rows and tell whether every request was answered."""

    async def measure() -> bool:
        good = True
        async for row in rows(args, server):
            sys.stdout.write(f"{json.dumps(row) if args.json else table_line(row)}\n")
            sys.stdout.flush()
            good = good and row["errors"] == 0
        return good

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measure())


def _print_peers(args: argparse.Namespace, folder: Path, bodies: Iterator[bytes]) -> None:
    """Print the rows of peers. A peer that is not installed is no error: how to install it is written to stderr."""
    installed = [peer for peer in PEERS if (args.peers / peer.program).exists()]
    for peer in PEERS:
        if peer not in installed:
            how = peer.made_by.format(args.peers)
            sys.stderr.write(f"{peer.name} is not in {args.peers} and is not measured. To install it: {how}\n")
    if not installed:
        return
    with running_upstream(folder) as upstream:
        print_rows(args, peer_server(upstream, bodies))
        for peer in installed:
            with running_peer(peer, args.peers, folder, upstream) as running_one:
                print_rows(args, peer_server(running_one, bodies))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the overhead of our gateway and of others; return 0 if ours answered all requests, else 1.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    args = parse_arguments(argv)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with tempfile.TemporaryDirectory(prefix="lorikeet-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # PostgreSQL may have to run as another user
        with running_installation(
            folder,
            args.model_dir.absolute(),
            num_gateways=args.gateways,
            num_replicas=args.replicas,
            num_tenants=args.tenants,
            with_limits=not args.without_limits,
        ) as installation:
            servers = [our_server(installation, args.max_tokens, prompts) for prompts in args.prompts]
            good = all([print_rows(args, server) for server in servers])  # noqa: C419 - each of them is printed
        _print_peers(args, folder, bodies_of(args.max_tokens))
        return int(not good)


if __name__ == "__main__":
    sys.exit(main())
