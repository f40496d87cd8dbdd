"""The load of an upgrade: streams that follow each other, and short requests at a steady rate."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from functools import lru_cache

import msgspec

from tests.deploy.client import Client, Exchange, Outcome
from tests.faults.watcher import PROMPT
from tests.gateway.live import BASE

REQUEST_TOKENS = (1, 4)
STOP_SEEN_WITHIN_S = 0.1
MAX_SHORT = 200
"""The most short requests at one time: a second's at full size, each of which takes a fifth of that.

On a machine that does not keep up with the rate, requests beyond it are left out. Else they would wait, each with a
connection of its own, until this process has no descriptor left.
"""


class Size(msgspec.Struct, frozen=True):
    """The size of a load: rates, numbers and lengths."""

    num_streams: int
    requests_per_s: float
    stream_tokens: tuple[int, int]
    """The fewest and the most tokens of a stream."""
    slack_s: float = 4.5
    """The seconds by which streams may take longer on a busy machine."""

    def lame_duck_s(self, tokens_per_s: float) -> float:
        """Return a time in seconds that is longer than any stream, even on a busy machine."""
        return self.stream_tokens[1] / tokens_per_s + self.slack_s


def request_bytes(secret: str, fields: dict[str, object]) -> bytes:
    body = msgspec.json.encode({"model": BASE, "prompt": PROMPT, "ignore_eos": True} | fields)
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {secret}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def load(client: Client, secret: str, stop: threading.Event, size: Size) -> list[Outcome]:
    """Run the load until `stop` is set, and return the outcomes of all streams and requests.

    Prints the part of a processor that sending and receiving took, and the number of requests that MAX_SHORT left out.
    """
    rng, began_s, used_s = random.Random(1), time.monotonic(), time.thread_time()
    num_due = num_left_out = num_running = 0

    @lru_cache(maxsize=1024)
    def written(wanted: int, *, stream: bool) -> bytes:
        return request_bytes(secret, {"max_tokens": wanted, "stream": stream})

    def next_stream() -> None:
        if not stop.is_set():
            wanted = rng.randint(*size.stream_tokens)
            client.begin(Exchange(written(wanted, stream=True), wanted, next_stream))

    def end_short() -> None:
        nonlocal num_running
        num_running -= 1

    for _ in range(size.num_streams):
        next_stream()
    while not stop.is_set() or client.num_running:
        due_s = began_s + num_due / size.requests_per_s - time.monotonic()
        while due_s <= 0 and not stop.is_set():
            if num_running < MAX_SHORT:
                wanted = rng.randint(*REQUEST_TOKENS)
                client.begin(Exchange(written(wanted, stream=False), wanted, end_short))
                num_running += 1
            else:
                num_left_out += 1
            num_due += 1
            due_s += 1 / size.requests_per_s
        client.advance(max(0.0, min(due_s, STOP_SEEN_WITHIN_S)))
    part = (time.thread_time() - used_s) / (time.monotonic() - began_s)
    print(f"clients took {part:.2f} of a processor, left {num_left_out} of {num_due} short requests out, ", end="")
    client.close()
    return [each.outcome() for each in client.ended]


def check_whole(outcomes: list[Outcome]) -> None:
    """Check that every request got a complete answer."""
    failed = [each for each in outcomes if not each.is_whole]
    num_tokens = sum(each.seen.num_tokens for each in outcomes)
    print(f"{num_tokens} tokens, {len(failed)} failed", flush=True)
    assert not failed, (Counter(each.error for each in failed), failed[:5])
