"""Gateways before the same server of another maker, asked in turns at one rate: the time that each adds to it.

Ours has keys, limits and the ledger on; the others are as `gateway.bench.peers` starts them, with a key at most. The
machine is never quiet for long, so that only figures of one run are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import uvloop

from gateway.bench.http import connect, post
from gateway.bench.installation import MODEL_NAME, Installation
from gateway.bench.open_loop import Connections, as_fast_as_possible, at_rate
from gateway.bench.overhead import PATH, Server, peer_server
from gateway.bench.peers.running import LITELLM, PEERS, RunningPeer, running_peer

CONNECTIONS = 64
STREAMS = 16
WARM_UP_S = 4.0
"""Seconds for which each server is asked as fast as it answers, before any round, to find its highest rate."""

SPARE = 0.7
"""The largest part of a server's highest rate at which requests are sent: above it requests queue, and a latency shows
the queue instead of the time that one request takes."""

Rows = dict[str, list[dict[str, Any]]]
"""The rounds of each server, by its name."""


@contextmanager
def running_peers(peers: Path, folder: Path, upstream: RunningPeer) -> Iterator[list[RunningPeer]]:
    """Run each other gateway that is installed in the folder of peers, before the server, within the context.

    folder: gets their logs.
    """
    installed = [each for each in PEERS if (peers / each.program).exists()]
    with ExitStack() as stack:
        yield [stack.enter_context(running_peer(each, peers, folder, upstream)) for each in installed]


def servers_of(
    installation: Installation, pool: str, upstream: RunningPeer, peers: Sequence[RunningPeer], *, stream: bool
) -> list[Server]:
    """Return the server itself, our gateway before it, and other gateways, each with requests for it.

    stream: True: replies are streamed.
    """

    def bodies(model: str) -> Iterator[bytes]:
        for number in itertools.count():
            messages = [{"role": "user", "content": f"Seven birds sleep by the harbor. {number:07}"}]
            yield msgspec.json.encode({"model": model, "messages": messages, "max_tokens": 8, "stream": stream})

    requests = (post(PATH, installation.keys[0], body) for body in bodies(pool))
    ours = Server("lorikeet", "question", installation.ports, requests, installation.cpu_s)
    return [peer_server(upstream, bodies(MODEL_NAME)), ours, *(peer_server(each, bodies(MODEL_NAME)) for each in peers)]


def measure(args: argparse.Namespace, servers: Sequence[Server]) -> Rows:
    """Ask all servers at a rate, in turns; return the rounds of each."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_rounds(args, servers))


async def _rounds(args: argparse.Namespace, servers: Sequence[Server]) -> Rows:
    rng = random.Random(args.seed)  # noqa: S311 - arrivals are no secret
    opened = {each.name: [await connect("127.0.0.1", each.ports[0]) for _ in range(CONNECTIONS)] for each in servers}
    connections = {name: Connections(found) for name, found in opened.items()}
    most = {}
    for each in servers:
        row = await as_fast_as_possible(connections[each.name], each.requests, STREAMS, WARM_UP_S)
        most[each.name] = max(1.0, SPARE * row["per_s"])
    rates = rates_of(most, args.rate)
    rows: Rows = {each.name: [] for each in servers}
    for _ in range(args.rounds):
        for each in rng.sample(servers, len(servers)):
            before_s = each.cpu_s()
            row = await at_rate(connections[each.name], each.requests, rates[each.name], args.seconds, rng)
            cpu_ms = (each.cpu_s() - before_s) * 1e3 / (rates[each.name] * args.seconds)
            rows[each.name].append(row | {"cpu_ms": cpu_ms})
    for found in connections.values():
        found.close()
    return rows


def rates_of(most: Mapping[str, float], wanted: float) -> dict[str, float]:
    """Return the rate of requests for each server: one for all, but a lower one for LiteLLM.

    most: the highest rate of each server, by its name. wanted: the requests a second to send at most.
    """
    common = min(wanted, *(rate for name, rate in most.items() if name != LITELLM.name))
    return {name: min(common, rate) for name, rate in most.items()}


def table(rows: Rows) -> Iterator[str]:
    """Yield the lines of the table: medians of the rounds, and the difference between our gateway and each other."""
    found = {
        name: {
            key: median(each[key] or 0.0 for each in rounds) for key in ("ms_p50", "ms_p99", "cpu_ms", "offered_per_s")
        }
        for name, rounds in rows.items()
    }
    direct, ours = found["upstream"], found["lorikeet"]
    for name, each in found.items():
        errors = sum(row["errors"] for row in rows[name])
        yield (
            f"{name:<9} p50 {each['ms_p50']:7.2f} ms   p99 {each['ms_p99']:7.2f} ms   added p50 "
            f"{each['ms_p50'] - direct['ms_p50']:6.2f} ms   CPU {each['cpu_ms']:5.2f} ms a request   "
            f"at {each['offered_per_s']:3.0f}/s   errors {errors}"
        )
    for name in found.keys() - {"upstream", "lorikeet"}:
        ratios = {key: median(_ratios(rows["lorikeet"], rows[name], key)) for key in ("ms_p99", "cpu_ms")}
        yield f"ours beside {name}: p99 {ratios['ms_p99']:.2f} times, CPU {ratios['cpu_ms']:.2f} times, by rounds"
    yield f"ours beside a direct call: p50 {ours['ms_p50'] - direct['ms_p50']:+.2f} ms"


def _ratios(ours: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]], key: str) -> list[float]:
    return [mine[key] / other[key] for mine, other in zip(ours, others, strict=True) if mine[key] and other[key]]
