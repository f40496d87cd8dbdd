"""Gateways and engines that speak over TCP with keys: right answers, an exact ledger, and no readable packet."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.protocol import PROTOCOL_VERSION, GenerateRequest, Hello, SamplingParams, Submit, encode
from tests.faults.pools.load import check_billed, load, wait_for_answers
from tests.faults.pools.world import World, running_world

NUM_REQUESTS, NUM_REQUESTS_FULL = 60, 10_000
ALL_PROTOCOLS = 0x0003
"""The number ETH_P_ALL of packet(7), with which a socket receives packets of all protocols."""
PACKET_BYTES = 1 << 17
HOST = "127.0.0.4"
LOOK_S = 0.2
HELLO = Hello(PROTOCOL_VERSION, "", "")


class Capture:
    """The captured packets on the loopback from or to one address that contain one of some words."""

    def __init__(self, words: list[bytes]) -> None:
        self.num_bytes = 0
        self.found: set[bytes] = set()
        self._words = words
        self._address = socket.inet_aton(HOST)
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ALL_PROTOCOLS))
        self._socket.bind(("lo", 0))
        self._socket.settimeout(LOOK_S)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._is_over.is_set():
            try:
                packet = self._socket.recv(PACKET_BYTES)
            except TimeoutError:
                continue
            if self._address in packet[12:20]:
                self.num_bytes += len(packet)
                self.found.update(word for word in self._words if word in packet)

    def close(self) -> None:
        """Stop the capture."""
        self._is_over.set()
        self._thread.join()
        self._socket.close()


@contextmanager
def capturing(words: list[bytes]) -> Iterator[Capture | None]:
    """Give a capture of packets; None where this process may not capture."""
    try:
        capture = Capture(words)
    except PermissionError:
        yield None
        return
    try:
        yield capture
    finally:
        capture.close()


@pytest.fixture
def world(dsn: str, tmp_path: Path) -> Iterator[World]:
    flags = ("--tokens-per-s", "200")
    with running_world(dsn, tmp_path, engine_flags=flags, host=HOST, guarded=True) as (world, _):
        yield world


async def test_no_answer_is_wrong_and_none_can_be_read_on_the_way(world: World, full: bool) -> None:
    num_requests = NUM_REQUESTS_FULL if full else NUM_REQUESTS
    words = [world.key.project_id.encode(), b"request_id", b"submit", b"hello"]
    plain = encode(Submit(GenerateRequest("", [1], SamplingParams(1), tenant=world.key.project_id))) + encode(HELLO)
    assert all(word in plain for word in words)
    with capturing(words) as capture:
        async with load(world, 0):
            while world.outcomes["answered"] < num_requests:
                await wait_for_answers(world, min(200, num_requests))
    assert set(world.outcomes) == {"answered"}, world.outcomes
    await check_billed(world)
    if capture is None:
        pytest.skip("packets cannot be captured without the right to (CAP_NET_RAW); the answers were right")
    assert capture.num_bytes > 100 * num_requests
    assert capture.found == set()
