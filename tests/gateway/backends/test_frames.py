"""No message that comes over ZeroMQ is lost or waits for another one to come, however sends and receives mix."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from gateway.backends.engine.frames import Frames
from tests.patience import PATIENCE_S


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as near, context.socket(zmq.DEALER) as far:
        for socket in (near, far):
            socket.setsockopt(zmq.LINGER, 0)
        far.bind(f"ipc://{tmp_path}/socket")
        near.connect(f"ipc://{tmp_path}/socket")
        yield near, far


async def test_every_message_wakes_its_reader_whatever_is_sent_meanwhile(
    pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes]],
) -> None:
    """Both ends send and read in random order and wait for each other, so that one missed wake would stop them."""
    near, far = Frames(pair[0]), Frames(pair[1])
    rng, numbers = random.Random(0), itertools.count()

    async def echo() -> None:
        while True:
            for frame in await far.take():
                far.send(frame)

    echoing = asyncio.create_task(echo())
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(500):
            sent = [str(next(numbers)).encode() for _ in range(rng.randint(1, 3))]
            for frame in sent:
                near.send(frame)
                if rng.random() < 0.3:
                    await asyncio.sleep(0)
            got: list[bytes] = []
            while len(got) < len(sent):
                got += await near.take()
            assert got == sent
    echoing.cancel()
    near.stop()
    far.stop()


async def test_a_full_socket_says_so(tmp_path: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as alone:
        alone.setsockopt(zmq.LINGER, 0)
        alone.setsockopt(zmq.SNDHWM, 2)
        alone.connect(f"ipc://{tmp_path}/nobody")
        frames = Frames(alone)
        with pytest.raises(zmq.Again):
            for _ in range(4):
                frames.send(b"x")
        frames.stop()
