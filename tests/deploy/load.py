"""The load of an upgrade: streams that follow each other, and short requests at a steady rate."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter

import msgspec

from tests.deploy.client import Client, Outcome
from tests.faults.watcher import PROMPT
from tests.gateway.live import BASE

REQUEST_TOKENS = (1, 4)


class Size(msgspec.Struct, frozen=True):
    """The size of a load."""

    num_streams: int
    requests_per_s: float
    stream_tokens: tuple[int, int]
    """The fewest and the most tokens of a stream."""

    def lame_duck_s(self, tokens_per_s: float) -> float:
        """Return seconds that are longer than any stream, with what a busy machine takes more."""
        return self.stream_tokens[1] / tokens_per_s + 4.5


def request_bytes(secret: str, fields: dict[str, object]) -> bytes:
    body = msgspec.json.encode({"model": BASE, "prompt": PROMPT, "ignore_eos": True} | fields)
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {secret}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def load(client: Client, secret: str, stop: threading.Event, size: Size) -> list[Outcome]:
    """Return the outcomes of all streams and requests that were begun before the stop."""
    rng, outcomes = random.Random(1), list[Outcome]()

    async def ask(wanted: int, *, stream: bool) -> None:
        request = request_bytes(secret, {"max_tokens": wanted, "stream": stream})
        outcomes.append(await client.ask(request, wanted, stream=stream))

    async def streams() -> None:
        while not stop.is_set():
            await ask(rng.randint(*size.stream_tokens), stream=True)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(size.num_streams):
            tasks.create_task(streams())
        begun_s, num = time.monotonic(), 0
        while not stop.is_set():
            num += 1
            await asyncio.sleep(begun_s + num / size.requests_per_s - time.monotonic())
            tasks.create_task(ask(rng.randint(*REQUEST_TOKENS), stream=False))
    client.close()
    return outcomes


def check_whole(outcomes: list[Outcome]) -> None:
    """Check that every request was answered whole."""
    failed = [each for each in outcomes if not each.is_whole]
    num_tokens = sum(each.seen.num_tokens for each in outcomes)
    print(f"{num_tokens} tokens, {len(failed)} failed", flush=True)
    assert not failed, (Counter(each.error for each in failed), failed[:5])
