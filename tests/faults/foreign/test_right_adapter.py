"""Adapters whose answers name them, on own engines and servers of other makers that load, forget, restart and die: the
right adapter answers or none does, and never the base model in silence."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import httpx
import pytest

from engine.config import model_digest
from engine.fake import fake_token
from engine.protocol import GenerateRequest, SamplingParams
from gateway.backends.engine.model import EngineModel
from gateway.db.adapters import adapter_versions
from gateway.text.tokenizer import Tokenizer
from tests.faults.foreign.site import Desk, open_connection
from tests.figures import figure
from tests.gateway.backends.foreign.fake import FakeServer
from tests.gateway.backends.foreign.fake_llamacpp import FakeLlamaCpp
from tests.gateway.backends.foreign.fake_vllm import BASE, FakeVllm, tokens_of
from tests.gateway.backends.foreign.test_sglang import FakeSglang
from tests.installation.live_gateway import BASE as OWN

NUM_REQUESTS, NUM_FULL = 80, 20_000
NUM_CLIENTS = 12
NUM_ADAPTERS = 6
MAX_LOADED = 4
"""The number of adapters at one server at once, so few that each gateway unloads and loads all the time."""

LENGTHS = (11, 23)
"""Lengths of prompts in tokens. The fake engine's answer is the prompt, rotated by a number of the adapter."""


def _digests_with_distinct_answers() -> list[str]:
    """Return digests of adapters whose answers by the fake servers are plain text and all different."""
    found, seen = list[str](), set[tuple[int, ...]]()
    for number in itertools.count():
        made = hashlib.sha256(f"adapter {number}".encode()).hexdigest()
        shifts = tuple(int(made[:8], 16) % length for length in LENGTHS)
        if max(tokens_of(made)) < 94 and min(shifts) > 0 and not {tuple(tokens_of(made)), shifts} & seen:
            seen |= {tuple(tokens_of(made)), shifts}
            found.append(made)
        if len(found) == NUM_ADAPTERS:
            return found
    raise AssertionError("there is always another one")


DIGESTS = _digests_with_distinct_answers()
FOLDER = "/srv/adapters"
DISTURB_S = 0.04
GATEWAY_DIES_AFTER = 2_000
"""Answers after which the gateway is killed and started again, at full size."""

PAUSE_AFTER_KILL_S = 1.0
FIRST_SEED = int(os.environ.get("FIRST_SEED", "0"))
REFUSALS = {httpx.codes.BAD_REQUEST, httpx.codes.BAD_GATEWAY, httpx.codes.SERVICE_UNAVAILABLE}
"""Statuses of refusals. 400 comes from a server that was started without the adapter."""


def digest(number: int) -> str:
    return DIGESTS[number - 1]


def file(number: int) -> str:
    return f"/srv/ggufs/{digest(number)}.gguf"


class World:
    """All servers, the answer that each model must give, and the outcomes of requests."""

    def __init__(self, desk: Desk, tokenizer: Tokenizer) -> None:
        self.desk = desk
        self.outcomes: Counter[str] = Counter()
        self.is_done = False
        self.disturbances: list[Callable[[random.Random], Awaitable[None]]] = []
        self._decode = tokenizer.decode

    @property
    def num_answered(self) -> int:
        return sum(number for outcome, number in self.outcomes.items() if outcome.startswith("answered"))

    def expected(self, pool: str, number: int, prompt: list[int], max_tokens: int) -> str:
        """Return the text that a model answers with.

        number: the number of the adapter; 0 is the base model.
        """
        match pool:
            case "vllm":
                return self._decode(tokens_of(digest(number) if number else BASE))
            case "sglang":
                return self._decode(tokens_of(digest(number) if number else "base"))
            case "llamacpp":
                return file(number) if number else "base"
        adapter = digest(number)[:8] if number else ""
        request = GenerateRequest("", prompt, SamplingParams(max_tokens=max_tokens), "", adapter)
        return self._decode([fake_token(request, position) for position in range(max_tokens)])

    async def ask(self, draw: random.Random) -> None:
        """Send a request to a random model of a random pool.

        Raises AssertionError: when the answer is not the model's own.
        """
        pool, number = draw.choice((OWN, "vllm", "sglang", "llamacpp")), draw.randrange(NUM_ADAPTERS + 1)
        prompt = [draw.randrange(3, 94) for _ in range(draw.choice(LENGTHS))]
        max_tokens = draw.randint(4, 12) if pool == OWN else 200
        body = {"model": f"{pool}:a{number}" if number else pool, "prompt": prompt, "max_tokens": max_tokens}
        if pool == OWN:
            body |= {"ignore_eos": True, "temperature": 0}
        try:
            reply = await self.desk.tenant.post("/v1/completions", json=body)
        except httpx.TransportError:
            self.outcomes["cut off with the gateway"] += 1
            return
        if reply.status_code != httpx.codes.OK:
            assert reply.status_code in REFUSALS, reply.text
            self.outcomes[f"{pool} {reply.status_code} {reply.json()['error']['code']}"] += 1
            await asyncio.sleep(0.02)
            return
        text = reply.json()["choices"][0]["text"]
        assert not number or text != self.expected(pool, 0, prompt, max_tokens), f"{pool} answered from its base"
        assert text == self.expected(pool, number, prompt, max_tokens), (pool, number, text)
        self.outcomes[f"answered {pool}"] += 1

    async def disturb(self, draw: random.Random) -> None:
        """Cause one fault of the servers after the other until all requests are done."""
        while not self.is_done:
            await asyncio.sleep(DISTURB_S)
            await draw.choice(self.disturbances)(draw)


async def restart(server: FakeServer, *, away_s: float) -> None:
    """Stop a server with all its connections, and start it again at the same address after a pause."""
    await server.stop()
    await asyncio.sleep(away_s)
    await server.start()


async def with_vllm(world: World, server: FakeServer) -> None:
    vllm = FakeVllm(FOLDER, server)

    async def forget(draw: random.Random) -> None:
        vllm.restart()

    async def unload(draw: random.Random) -> None:
        if vllm.loaded:  # by somebody else
            vllm.loaded.pop(draw.choice(sorted(vllm.loaded)))
            vllm._list()

    async def die(draw: random.Random) -> None:
        vllm.restart()
        await restart(server, away_s=draw.choice((0.0, 0.3)))

    world.disturbances += [forget, unload, die]


async def with_sglang(world: World, server: FakeServer) -> None:
    sglang = FakeSglang(server)

    async def forget(draw: random.Random) -> None:
        sglang.loaded.clear()

    async def evict(draw: random.Random) -> None:
        if sglang.loaded:
            sglang.loaded.pop(next(iter(sglang.loaded)))

    async def die(draw: random.Random) -> None:
        sglang.loaded.clear()
        await restart(server, away_s=draw.choice((0.0, 0.3)))

    world.disturbances += [forget, evict, die]


async def with_llamacpp(world: World, server: FakeServer) -> None:
    files = [file(number) for number in range(1, NUM_ADAPTERS + 1)]
    llama = FakeLlamaCpp(server, *files)

    async def reorder(draw: random.Random) -> None:
        draw.shuffle(files)
        await llama.restart(*files[: draw.randint(NUM_ADAPTERS - 1, NUM_ADAPTERS)])

    world.disturbances += [reorder]


MAKERS = {"vllm": with_vllm, "sglang": with_sglang, "llamacpp": with_llamacpp}


@pytest.fixture
async def world(desk: Desk) -> AsyncIterator[World]:
    site = desk.site
    async with open_connection(site.dsn) as conn:
        for number in range(1, NUM_ADAPTERS + 1):
            await adapter_versions.put_adapter(
                conn,
                site.key.project_id,
                f"a{number}",
                base_digest=model_digest(site.model_dir),
                digest=digest(number),
                rank=8,
                size_bytes=1,
            )
    world = World(desk, EngineModel.load(site.model_dir).tokenizer)
    for pool in MAKERS:
        assert len({world.expected(pool, number, [], 0) for number in range(NUM_ADAPTERS + 1)}) == NUM_ADAPTERS + 1

    async def kill_engine(draw: random.Random) -> None:
        await asyncio.to_thread(site.engine.restart)
        await asyncio.sleep(PAUSE_AFTER_KILL_S)

    world.disturbances.append(kill_engine)
    async with AsyncExitStack() as stack:
        for engine, make in MAKERS.items():
            servers = [FakeServer() for _ in range(2)]
            for server in servers:
                await make(world, server)
                await server.start()
                stack.push_async_callback(server.stop)
            loads = {"adapter_folder": FOLDER, "max_adapters": MAX_LOADED}
            settings = {"preloaded_adapters": True} if engine == "llamacpp" else loads
            urls = [server.url for server in servers]
            await stack.enter_async_context(
                desk.pool(engine, urls, engine=engine, model=str(site.model_dir), **settings)
            )
        yield world


async def test_the_right_adapter_answers_or_none(world: World, full: bool) -> None:
    num_requests, draw = NUM_FULL if full else NUM_REQUESTS, random.Random(FIRST_SEED)

    async def client(own: random.Random) -> None:
        while not world.is_done:
            await world.ask(own)

    async def kill_gateways() -> None:
        gateway, target = world.desk.site.gateway, GATEWAY_DIES_AFTER
        while full and not world.is_done:
            await asyncio.sleep(0.1)
            if world.num_answered >= target:
                target += GATEWAY_DIES_AFTER
                await asyncio.to_thread(gateway.kill)
                await asyncio.to_thread(gateway.start)

    disturbing = [asyncio.create_task(world.disturb(draw)), asyncio.create_task(kill_gateways())]
    clients = [asyncio.create_task(client(random.Random(draw.random()))) for _ in range(NUM_CLIENTS)]
    try:
        while world.num_answered < num_requests:
            await asyncio.sleep(0.1)
            for each in [*clients, *disturbing]:
                if each.done():
                    each.result()
    finally:
        world.is_done = True
        await asyncio.gather(*disturbing, *clients)
    figure(f"{dict(sorted(world.outcomes.items()))}")
    for pool in (OWN, *MAKERS):
        assert world.outcomes[f"answered {pool}"] > num_requests / 12, world.outcomes
