"""`python -m gateway.bench.slow_readers`: how clients that do not read slow other clients down, and what they cost.

One gateway over the fake engine, first alone, then with as many streams that are read, and with the slow ones, half of
which never read and half a byte a second. Prints the latencies of others, for a chat of one token and for a route that
asks no engine, and the memory of the gateway and of the kernel's sockets; then how many of the slow ones were cut off.
A program, never a timed test.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from gateway.bench.http import connect, post
from gateway.bench.installation import MODEL_NAME, Installation, running_installation
from gateway.bench.open_loop import Connections, at_rate

PATH = "/v1/chat/completions"
CONNECTIONS = 64
RECEIVE_BYTES = 4096
"""Bytes of a slow reader's receive buffer: the smallest that systems allow is about half of that."""

PAGE_BYTES = 4096


def body(max_tokens: int, **fields: object) -> bytes:
    """Return the body of a chat completion's request."""
    messages = [{"role": "user", "content": "The old harbor turns green over the river while seven birds sleep."}]
    return msgspec.json.encode({"model": MODEL_NAME, "messages": messages, "max_tokens": max_tokens, **fields})


class Streams:
    """Streams with log-probabilities, which fill every buffer within seconds.

    pause_s: the pause between the bytes that every second client reads, while the others read none; None: all read all.
    """

    def __init__(self, pause_s: float | None) -> None:
        self._pause_s = pause_s
        self._sockets: list[socket.socket] = []
        self._readers: list[asyncio.Task[None]] = []

    async def begin(self, port: int, keys: Sequence[str], count: int) -> None:
        """Open `count` connections, ask for a long stream on each, and begin to read them as `pause_s` says.

        port: the port of the gateway.
        """
        loop = asyncio.get_running_loop()
        for number in range(count):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", port))
            asked = body(4096, stream=True, logprobs=True, top_logprobs=20)
            await loop.sock_sendall(sock, post(PATH, keys[number % len(keys)], asked))
            self._sockets.append(sock)
            if number % 2 or self._pause_s is None:
                self._readers.append(asyncio.create_task(self._read(sock)))

    async def _read(self, sock: socket.socket) -> None:
        size = 1 << 16 if self._pause_s is None else 1
        with contextlib.suppress(ConnectionError):
            while await asyncio.get_running_loop().sock_recv(sock, size):  # noqa: ASYNC110 - its own slowness
                await asyncio.sleep(self._pause_s or 0)

    async def end(self) -> None:
        """Stop reading and close all connections."""
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        for sock in self._sockets:
            sock.close()


def memory(installation: Installation) -> dict[str, float]:
    """Return the megabytes of the gateway's process, and of all sockets of this machine (proc(5), sockstat)."""
    (gateway,) = installation.gateways
    status = Path(f"/proc/{gateway.pid}/status").read_text()
    resident_kb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    tcp = next(line for line in Path("/proc/net/sockstat").read_text().splitlines() if line.startswith("TCP:")).split()
    return {"gateway_mb": round(resident_kb / 1024, 1), "sockets_mb": round(int(tcp[-1]) * PAGE_BYTES / 1e6, 1)}


async def row(installation: Installation, args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return one row: the other readers' latencies in ms, and the memory once all are done."""
    connections = Connections([await connect("127.0.0.1", installation.ports[0]) for _ in range(CONNECTIONS)])
    asked = {
        "models": [_get("/v1/models", key) for key in installation.keys],
        "chat": [post(PATH, key, body(1)) for key in installation.keys],
    }
    found: dict[str, Any] = {"with": name}
    try:
        for what, requests in asked.items():
            rng = random.Random(args.seed)  # noqa: S311 - arrivals are no secret
            measured = await at_rate(connections, requests, args.rate, args.seconds, rng)
            found |= {f"{what}_{q}": measured[q] for q in ("ms_p50", "ms_p99", "errors")}
    finally:
        connections.close()
    return found | memory(installation)


def _get(path: str, key: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n\r\n".encode()


async def measure(installation: Installation, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows without slow clients, beside them, and after they were cut off."""
    rows = [await row(installation, args, "nobody") for _ in range(2)][1:]
    for name, pause_s in ((f"{args.slow} readers", None), (f"{args.slow} slow ones", 1.0)):
        streams = Streams(pause_s)
        await streams.begin(installation.ports[0], installation.keys, args.slow)
        await asyncio.sleep(args.fill_seconds)
        rows.append(await row(installation, args, name))
        if pause_s is not None:
            await asyncio.sleep(args.unread_seconds)
            rows.append(await row(installation, args, "those, cut off"))
        await streams.end()
    return rows


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.slow_readers", description=__doc__)
    add = parser.add_argument
    add("--model-dir", type=Path, required=True, help="a prepared model's folder: its tokenizer and template are used")
    add("--slow", type=int, default=500, help="clients that do not read")
    add("--steps-per-s", type=float, default=4.0, help="tokens that each of them is sent in a second, at most")
    add("--fill-seconds", type=float, default=30.0, help="seconds until every buffer of the slow readers is full")
    add("--unread-seconds", type=float, default=60.0, help="LORIKEET_UNREAD_SECONDS of the gateway")
    add("--rate", type=float, default=50.0, help="requests of others per second")
    add("--seconds", type=float, default=20.0, help="seconds of each measurement")
    add("--tenants", type=int, default=10, help="keys that the requests use in turn")
    add("--seed", type=int, default=0, help="seed of the arrivals")
    add("--json", action="store_true", help="one JSON line per row instead of a table")
    return parser.parse_args(argv)


def table_line(found: dict[str, Any]) -> str:
    """Return a row as a line of text."""
    parts = (
        f"{what} p50 {found[f'{what}_ms_p50']} ms, p99 {found[f'{what}_ms_p99']} ms, errors {found[f'{what}_errors']}"
        for what in ("models", "chat")
    )
    cut = f"; {found['num_cut']} cut off" if "num_cut" in found else ""
    memory = f"gateway {found['gateway_mb']} MB, sockets {found['sockets_mb']} MB"
    return f"{found['with']:<18}  {'; '.join((*parts, memory))}{cut}"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure with clients that read slowly; return 0 if no other client's request failed, else 1.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    args = parse_arguments(argv)
    with tempfile.TemporaryDirectory(prefix="lorikeet-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # PostgreSQL may have to run as another user
        with (
            running_installation(
                folder,
                args.model_dir.absolute(),
                num_gateways=1,
                num_tenants=args.tenants,
                with_limits=True,
                engine_flags=("--tokens-per-s", str(args.steps_per_s), "--max-num-seqs", str(args.slow + CONNECTIONS)),
                settings_of={"LORIKEET_UNREAD_SECONDS": str(args.unread_seconds)},
            ) as installation,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            rows = runner.run(measure(installation, args))
            # Its log has a line for each client that was cut off.
            rows[-1]["num_cut"] = (folder / "gateway0.log").read_text().count("client_does_not_read")
    for found in rows:
        sys.stdout.write(f"{json.dumps(found) if args.json else table_line(found)}\n")
    return int(any(found[f"{what}_errors"] for found in rows for what in ("models", "chat")))


if __name__ == "__main__":
    sys.exit(main())
