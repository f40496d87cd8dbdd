"""5,000 clients of 50 addresses that send nothing, half a request, or a byte a second, or do not read the reply.

Beside them a client that behaves sends requests, which must be answered.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import socket
import time
from functools import partial
from pathlib import Path

import msgspec

from tests.drills.drill import Drill, Outcome
from tests.drills.ground import Ground, running_ground
from tests.drills.growth import MIB, cpu_s, rss_bytes

NUM_CONNECTIONS, NUM_SMALL, NUM_ADDRESSES = 5000, 1000, 50
HEAD_S = UNREAD_S = 10.0
"""Limits of the gateways in seconds, which are the defaults."""

MAX_LATE_S, MAX_NEW_CLIENT_S, MAX_GROWN_BYTES = 15.0, 1.0, 200 * MIB
HALF = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-long: "
UNREAD = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n"
KINDS = ("silent", "half a head", "dripping", "not reading")


class ConnectionEnds(msgspec.Struct):
    """The ways in which clients' connections ended."""

    took_s: dict[str, list[float]] = {}
    """The seconds until each client's connection was closed, by the client's kind."""
    refused: int = 0
    """The number of clients that were never served."""


async def client(kind: str, port: int, address: str, ends: ConnectionEnds) -> None:
    loop, begun_s = asyncio.get_running_loop(), 0.0
    sock = socket.socket()
    sock.setblocking(False)
    if kind == "not reading":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    try:
        sock.bind((address, 0))
        await loop.sock_connect(sock, ("127.0.0.1", port))
        begun_s = time.monotonic()
        if kind == "not reading":
            await loop.sock_sendall(sock, UNREAD)
            await asyncio.sleep(UNREAD_S + 5)  # then what was kept for it comes, and the end
        elif kind != "silent":
            await loop.sock_sendall(sock, HALF)
        async with asyncio.timeout(90):
            while True:
                try:
                    data = await asyncio.wait_for(loop.sock_recv(sock, 65536), 1.0)
                except TimeoutError:
                    if kind == "dripping":
                        await loop.sock_sendall(sock, b"y")
                    continue
                if b" 429 " in data[:20] or b" 503 " in data[:20]:
                    ends.refused += 1
                if not data:
                    break
    except (ConnectionError, TimeoutError):
        pass
    finally:
        sock.close()
    if begun_s:
        ends.took_s.setdefault(kind, []).append(time.monotonic() - begun_s)


async def new_clients(port: int, until_done: asyncio.Event, waits_s: list[float]) -> None:
    """Send a request once a second, each over a new connection from an address of its own."""
    while not until_done.is_set():
        begun_s = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.1.1", 0))
        writer.write(b"GET /health/ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        line = await reader.readline()
        assert b" 200 " in line, line
        waits_s.append(time.monotonic() - begun_s)
        writer.close()
        await asyncio.sleep(1)


async def _flood(number: int, ground: Ground, ends: ConnectionEnds, waits_s: list[float], grown: list[int]) -> None:
    gateway = ground.gateways[0]
    assert gateway.pid is not None
    before, done = rss_bytes(gateway.pid), asyncio.Event()
    asking = asyncio.create_task(new_clients(gateway.port, done, waits_s))
    clients = []
    for each in range(number):
        address = f"127.0.0.{2 + each % NUM_ADDRESSES}"
        clients.append(asyncio.create_task(client(KINDS[each % len(KINDS)], gateway.port, address, ends)))
        if each % 100 == 99:
            await asyncio.sleep(0.02)
    waiting = asyncio.gather(*clients)
    while not waiting.done():
        grown.append(rss_bytes(gateway.pid) - before)
        await asyncio.sleep(0.5)
    done.set()
    await asking


def slow_clients(number: int, folder: Path, rng: random.Random) -> Outcome:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with running_ground(folder, changes={"head_seconds": HEAD_S, "unread_seconds": UNREAD_S}) as ground:
            ends, waits_s, grown = ConnectionEnds(), list[float](), list[int]()
            with ground.traffic(0.1, rng.randrange(1 << 30)) as traffic:
                traffic.more_answers(10)
                before_s, pid = cpu_s(ground.gateways[0].pid or 0), ground.gateways[0].pid or 0
                asyncio.run(_flood(number, ground, ends, waits_s, grown))
                took_s = cpu_s(pid) - before_s
                traffic.more_answers(20)
            ground.check()
            assert not traffic.wrong
            latest = {kind: max(took_s) for kind, took_s in ends.took_s.items()}
            worst_s, grown_mib = max(waits_s), max(grown) / MIB
            ends_of_kinds = ", ".join(f"{late:.1f} s ({kind})" for kind, late in sorted(latest.items()))
            remark = (
                f"{number} closed after at most {ends_of_kinds}; "
                f"a new client waits at most {worst_s:.2f} s; RSS + {grown_mib:.0f} MiB; "
                f"{took_s:.1f} s of its processor time; {ends.refused} refused; load {os.getloadavg()[0]:.0f}"
            )
            held = max(latest.values()) <= HEAD_S + MAX_LATE_S
            assert held and worst_s <= MAX_NEW_CLIENT_S and max(grown) <= MAX_GROWN_BYTES, remark
            ground.settle()
            return Outcome(outcomes=dict(traffic.outcomes()), silence_s=traffic.longest_silence_s(), remark=remark)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


DRILLS = (
    Drill(
        "5,000 slow clients",
        "all gone in time, a new one served within a second, RSS + 200 MB",
        partial(slow_clients, NUM_CONNECTIONS),
        partial(slow_clients, NUM_SMALL),
    ),
)
