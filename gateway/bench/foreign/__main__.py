"""`python -m gateway.bench.foreign`: the time and the processor time that a gateway adds to a server of another maker.

Starts a database, a gateway and a server that answers at once, with authentication, limits and metering on. Prints the
latency of the same request sent to the server directly and through the gateway, in turns, and the processor time of the
gateway for each chunk of a stream whose chunks come one by one. Then the same server at a rate, through the gateway and
through other gateways that are installed in the folder of peers. A program, never a timed test.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles

import uvloop

from gateway.admin.pools.foreign import serve_at
from gateway.bench.foreign.compare import measure, running_peers, servers_of, table
from gateway.bench.http import Connection, connect, post
from gateway.bench.installation import Installation, free_port, running_installation, spawn
from gateway.bench.overhead import SWITCH_INTERVAL_S
from gateway.bench.peers.running import PEERS, RunningPeer
from gateway.db.organization.organizations import ensure_organization
from gateway.db.pool import Database
from gateway.db.pools.pools import create_pool
from gateway.db.pools.revisions import add_revision

POOL = "theirs"
PATH = "/v1/chat/completions"
READY_S = 30.0


def _body(max_tokens: int, text: str, *, stream: bool, model: str) -> bytes:
    messages = [{"role": "user", "content": text}]
    return json.dumps({"model": model, "messages": messages, "max_tokens": max_tokens, "stream": stream}).encode()


async def _make_pool(dsn: str, url: str) -> None:
    """Make the pool of the server, as the admin API would."""
    settings = {"allow_private": "true", "health_seconds": "0.5", "max_in_flight": "256"}
    async with await Database.connect(dsn) as database, database.transaction() as conn:
        organization = await ensure_organization(conn, "default")
        pool = await create_pool(conn, organization.id, POOL, num_replicas=0)
        assert pool is not None
        await serve_at(conn, pool, await add_revision(conn, pool.id, "", settings, driver="openai"), [url])


async def _await_ready(gateway: Connection, request: bytes) -> None:
    async with asyncio.timeout(READY_S):
        while await gateway.ask(request) != 200:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.1)


async def _measure(args: argparse.Namespace, installation: Installation, port: int) -> None:
    key = installation.keys[0]
    direct, through = await connect("127.0.0.1", port), await connect("127.0.0.1", installation.ports[0])
    short = {
        direct: post(PATH, "none", _body(1, "Say seven.", stream=True, model="bench")),
        through: post(PATH, key, _body(1, "Say seven.", stream=True, model=POOL)),
    }
    await _await_ready(through, short[through])
    times: dict[Connection, list[float]] = {direct: [], through: []}
    for number in range(args.requests + args.warm_up):
        for connection, request in short.items():
            began_s = time.perf_counter()
            assert await connection.ask(request) == 200
            if number >= args.warm_up:
                times[connection].append((time.perf_counter() - began_s) * 1e3)
    for name, connection in (("direct", direct), ("through the gateway", through)):
        cuts = quantiles(times[connection], n=100)
        _print(f"{name:<20} p50 {cuts[49]:6.2f} ms   p99 {cuts[98]:6.2f} ms")
    added = quantiles(times[through], n=100)[49] - quantiles(times[direct], n=100)[49]
    _print(f"{'added':<20} p50 {added:6.2f} ms")
    seconds = {}
    for num_chunks in (1, args.chunks):
        request = post(PATH, key, _body(num_chunks, "paced", stream=True, model=POOL))
        clients = [await connect("127.0.0.1", installation.ports[0]) for _ in range(args.streams)]
        await asyncio.gather(*(client.ask(request) for client in clients))
        before_s = installation.cpu_s()
        assert await asyncio.gather(*(client.ask(request) for client in clients)) == [200] * args.streams
        seconds[num_chunks] = (installation.cpu_s() - before_s) / args.streams
    each_us = (seconds[args.chunks] - seconds[1]) / (args.chunks - 1) * 1e6
    _print(f"processor time       {each_us:.0f} us a chunk, {seconds[1] * 1e3:.2f} ms a request of one chunk")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.foreign", description=__doc__)
    parser.add_argument("--model-dir", type=Path, required=True, help="folder of any prepared model")
    parser.add_argument("--requests", type=int, default=1000, help="requests of one chunk each way")
    parser.add_argument("--warm-up", type=int, default=200, help="requests before these that do not count")
    parser.add_argument("--chunks", type=int, default=300, help="chunks of a long stream")
    parser.add_argument("--streams", type=int, default=20, help="streams of each length, at once")
    parser.add_argument("--peers", type=Path, default=Path("build/peers"), help="where other gateways are installed")
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second beside other gateways")
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="length of each round, a fifth of which does not count"
    )
    parser.add_argument("--rounds", type=int, default=8, help="rounds of each gateway, in turns; 0 leaves them out")
    parser.add_argument("--seed", type=int, default=0, help="seed of the arrivals")
    return parser.parse_args(argv)


def _compare(args: argparse.Namespace, folder: Path, installation: Installation, upstream: RunningPeer) -> None:
    """Print the figures of our gateway and of others, for whole replies and for streams."""
    for peer in PEERS:
        if not (args.peers / peer.program).exists():
            how = peer.made_by.format(args.peers)
            sys.stderr.write(f"{peer.name} is not in {args.peers} and is not measured. To install it: {how}\n")
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with running_peers(args.peers, folder, upstream) as peers:
        for stream in (False, True):
            kind, load = "streams" if stream else "whole replies", os.getloadavg()[0]
            _print(f"\n{kind} at {args.rate:g} requests/s, load {load:.1f} before")
            for line in table(measure(args, servers_of(installation, POOL, upstream, peers, stream=stream))):
                _print(line)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the time that a gateway adds to a call of a server; return the exit status.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    args = parse_arguments(argv)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)
        port = free_port()
        command = (sys.executable, "-m", "gateway.bench.foreign.server", str(port))
        server = spawn(stack, folder / "server.log", command, {})
        installation = stack.enter_context(
            running_installation(folder, args.model_dir, num_gateways=1, num_tenants=1, with_limits=True)
        )
        asyncio.run(_make_pool(installation.dsn, f"http://127.0.0.1:{port}"))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_measure(args, installation, port))
        if args.rounds:
            _compare(args, folder, installation, RunningPeer("upstream", port, "none", {}, (server.pid,)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
