"""Chains of responses over two gateways: each response is stored once, and as soon as its reply has ended."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from typing import Any

import asyncpg
import httpx
import msgspec
import pytest

from tests.gateway.model_folder import make_model_folder
from tests.installation.databases import Databases, execute
from tests.installation.live_gateway import RunningInstallation, running_gateways
from tests.installation.tenants import Key, make_key
from tests.patience import PATIENCE_S
from tests.seeds import seeds

NUM_FOLLOWED, FULL_FOLLOWED = 20, 10_000
NUM_TURNS, FULL_TURNS = 10, 200
AT_ONCE = 4
MAX_TRIES, PAUSE_S = 20, 1.0
CONTEXT = 524_288
MAX_BYTES = 1.3

STORED_BYTES = """
    SELECT sum(octet_length(sealed_input) + octet_length(sealed_output)) FROM stored_responses WHERE project_id = $1
"""


class GatewayPair:
    """Two gateways over one database, and a project that stores responses."""

    def __init__(self, dsn: str, installed: RunningInstallation, key: Key) -> None:  # type: ignore[type-arg]
        self.dsn = dsn
        self.urls = [gateway.url for gateway in installed.gateways]
        self.key = key

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(headers=self.key.headers, timeout=PATIENCE_S)

    async def ask(
        self, client: httpx.AsyncClient, number: int, said: str | list[Any], parent: str | None
    ) -> dict[str, Any]:
        """Send requests to a gateway until a reply says that it is stored; return that reply.

        Without the database a reply says that it is not stored, and on a machine that stands still no engine may take a
        request.

        said: the input. parent: the id of the response to follow; None: the reply begins a chain.

        Raises AssertionError: for any refusal but 503, and when no reply is stored.
        """
        body = {"model": "tiny", "input": said, "max_output_tokens": 4, "previous_response_id": parent}
        for _ in range(MAX_TRIES):
            reply = await client.post(f"{self.urls[number % 2]}/v1/responses", json=body)
            if reply.status_code == 503:
                await asyncio.sleep(PAUSE_S)
                continue
            assert reply.status_code == 200, reply.text
            found: dict[str, Any] = reply.json()
            if found["store"]:
                return found
        raise AssertionError("nothing is stored")


@pytest.fixture(scope="module")
def pair(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayPair]:
    dsn, folder = databases.create("chains"), tmp_path_factory.mktemp("chains")
    key = asyncio.run(make_key(dsn, "chains"))
    asyncio.run(execute(dsn, f"UPDATE projects SET store_days = 1 WHERE id = '{key.project_id}'"))
    model_dir = make_model_folder(folder / "model", CONTEXT)
    with running_gateways(dsn, model_dir, num_gateways=2, data_dir=folder) as installed:
        yield GatewayPair(dsn, installed, key)


async def test_a_response_is_followed_at_once_at_another_gateway(pair: GatewayPair, full: bool) -> None:
    numbers = seeds(NUM_FOLLOWED, FULL_FOLLOWED, full=full)

    async def follow() -> None:
        async with pair.client() as client:
            for number in numbers:
                first = await pair.ask(client, number, f"question {number}", None)
                second = await pair.ask(client, number + 1, "and then?", str(first["id"]))
                assert second["previous_response_id"] == first["id"]

    await asyncio.gather(*(follow() for _ in range(AT_ONCE)))


async def test_a_chain_stores_each_of_its_turns_once(pair: GatewayPair, full: bool) -> None:
    num_turns = FULL_TURNS if full else NUM_TURNS
    conn = await asyncpg.connect(pair.dsn)
    before = await conn.fetchval(STORED_BYTES, pair.key.project_id) or 0
    parent, turn_bytes, times = None, 0, list[tuple[float, float]]()
    said: list[Any] = []
    async with pair.client() as client:
        for number in range(num_turns):
            text = f"turn {number}: " + "what do you think of it? " * 80
            said.append({"role": "user", "content": text})
            body = {"model": "tiny", "input": list(said), "max_output_tokens": 4, "store": False}

            async def followed(number: int = number, text: str = text, parent: str | None = parent) -> Any:
                return await pair.ask(client, number, text, parent)

            async def sent_whole(number: int = number, body: dict[str, Any] = body) -> Any:
                return (await client.post(f"{pair.urls[number % 2]}/v1/responses", json=body)).json()

            ways = {"followed": followed} | ({"sent whole": sent_whole} if full else {})  # whole: stored by nobody
            replies, took_s = {}, {}
            for name in list(ways)[:: -1 if number // 2 % 2 else 1]:
                began_s = time.monotonic()
                replies[name] = await ways[name]()
                took_s[name] = time.monotonic() - began_s
            reply = replies["followed"]
            turn_bytes += len(text.encode()) + len(msgspec.json.encode(reply["output"]))
            if full:
                assert replies["sent whole"]["usage"]["input_tokens"] == reply["usage"]["input_tokens"]
                times.append((took_s["followed"], took_s["sent whole"]))
            said += reply["output"]
            parent = str(reply["id"])
    stored = await conn.fetchval(STORED_BYTES, pair.key.project_id) - before
    await conn.close()
    assert stored <= MAX_BYTES * turn_bytes
    if full:
        quarter = num_turns // 4
        for start in range(0, num_turns, quarter):
            part = times[start : start + quarter]
            columns = (*zip(*part, strict=True), [one - other for one, other in part])
            followed, sent_whole, between = (1e3 * statistics.median(each) for each in columns)
            print(
                f"turns {start} to {start + quarter}, p50 in ms: {followed:.1f} followed, {sent_whole:.1f} sent whole, "
                f"{between:.2f} between them"
            )
        print(f"stored {stored} bytes of {turn_bytes}: {stored / turn_bytes:.2f}")
