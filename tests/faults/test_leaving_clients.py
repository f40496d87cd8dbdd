"""Clients that leave at random bytes: each request is billed once, as far as it was produced, and at least what its
client saw."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from tests.faults.conservation import check_conservation
from tests.faults.leaver import leave
from tests.faults.received import Received
from tests.faults.site import Site
from tests.faults.watcher import PROMPT
from tests.gateway.live import BASE

NUM_CLIENTS = 60
FULL_CLIENTS = 2000
AT_A_TIME = 60
TOKENS_PER_S = 30
"""The speed of the fake engine: so slow that a disconnection is noticed before the text ends."""


def body_of(rng: random.Random) -> bytes:
    fields: dict[str, object] = {"stream": rng.random() < 0.7, "max_tokens": rng.randint(10, 40)}
    fields["n"] = rng.choice((1, 1, 2))
    if rng.random() < 0.2:
        fields["stop"] = "v"
    if fields["stream"] and rng.random() < 0.5:
        fields["stream_options"] = {"include_usage": True}
    return msgspec.json.encode({"model": BASE, "prompt": PROMPT, "ignore_eos": True} | fields)


async def all_leave(site: Site, rng: random.Random, count: int) -> list[Received]:
    places = asyncio.Semaphore(AT_A_TIME)

    async def one(seed: int) -> Received:
        async with places:
            own = random.Random(seed)
            return await leave(site.gateways[0].port, site.key.secret, body_of(own), own)

    return await asyncio.gather(*(one(rng.getrandbits(32)) for _ in range(count)))


def test_who_leaves_at_a_random_byte_is_billed_once_for_what_was_made(open_folder: Path, full: bool) -> None:
    folder = open_folder / "leaving"
    folder.mkdir(mode=0o711)
    site = Site(folder, tokens_per_s=TOKENS_PER_S)
    try:
        site.start()
        # The clients have a thread of their own: a database ends with the thread that started it.
        with ThreadPoolExecutor(1) as thread:
            count = FULL_CLIENTS if full else NUM_CLIENTS
            site.seen += thread.submit(asyncio.run, all_leave(site, random.Random(6), count)).result()
        site.settle()
        rows, produced = check_conservation(site), site.produced()
    finally:
        site.close()
    for row in rows.values():
        assert row.completion_tokens + row.discarded_tokens == produced[row.request_id], "to the token, as it was made"
        assert row.finish_reason in ("abort", "stop", "length"), row
    num_begun = sum(row.finish_reason == "abort" for row in rows.values())
    num_cut = sum(client.num_tokens > 0 and not client.has_ended for client in site.seen)
    assert min(num_begun, num_cut) > count / 10, "many have to leave in the midst of it"
    assert len(rows) < count, "and some before"
