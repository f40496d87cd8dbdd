"""An alias moved under 16 streams over two gateways: none fails, none mixes versions, both follow within a second."""

from __future__ import annotations

import asyncio
import json
import time

import httpx
import msgspec

from engine.fake import fake_token
from engine.protocol import GenerateRequest, SamplingParams
from tests.gateway.routing.conftest import City, Tenant, digest_of_version
from tests.patience import PATIENCE_S, least

NUM_STREAMS = 16
NUM_PROMPTS = 3
NUM_TOKENS = 20
WITHIN_S = 1.0
PROMPT = list(range(65, 85))
"""A prompt of token ids that are single letters, so that every rotation of them is another text."""


class Answer(msgspec.Struct, frozen=True):
    """One answer to a streamed request."""

    gateway: int
    started_s: float
    ended_s: float
    status: int
    adapter: str
    versions: tuple[int, ...]
    """The version that each choice came from."""


class Traffic:
    """Streams that run one after another, over both gateways, until `end` is set."""

    def __init__(self, texts: dict[str, int]) -> None:
        self.answers: list[Answer] = []
        self.end = asyncio.Event()
        self._texts = texts
        self._answered = asyncio.Condition()

    async def run(self, client: httpx.AsyncClient, gateway: int) -> None:
        while not self.end.is_set():
            answer = await self._ask(client, gateway)
            async with self._answered:
                self.answers.append(answer)
                self._answered.notify_all()

    async def _ask(self, client: httpx.AsyncClient, gateway: int) -> Answer:
        body = {"model": "support-bot", "prompt": [PROMPT] * NUM_PROMPTS, "max_tokens": NUM_TOKENS, "stream": True}
        started_s, choices = time.monotonic(), [""] * NUM_PROMPTS
        async with client.stream("POST", "/v1/completions", json=body) as reply:
            lines = [line.removeprefix("data: ") async for line in reply.aiter_lines() if line]
        assert lines[-1] == "[DONE]", lines
        for line in lines[:-1]:
            for choice in json.loads(line)["choices"]:
                choices[choice["index"]] += choice["text"]
        versions = tuple(self._texts[text] for text in choices)
        adapter = reply.headers["x-lorikeet-adapter"]
        return Answer(gateway, started_s, time.monotonic(), reply.status_code, adapter, versions)

    async def until_both_have(self, version: int) -> None:
        """Wait until each gateway has answered from this version."""
        async with self._answered:
            await self._answered.wait_for(
                lambda: {answer.gateway for answer in self.answers if version in answer.versions} == {0, 1}
            )


async def texts_of_versions(client: httpx.AsyncClient, versions: range) -> dict[str, int]:
    """Return the version by its text, found by requesting each version."""
    texts = {}
    for version in versions:
        asked = GenerateRequest("", PROMPT, SamplingParams(NUM_TOKENS), "", adapter=digest_of_version(version))
        ids = [fake_token(asked, position) for position in range(NUM_TOKENS)]
        body = {"model": "tiny", "prompt": ids, "max_tokens": NUM_TOKENS}
        texts[(await client.post("/v1/completions", json=body)).json()["choices"][0]["text"]] = version
    assert len(texts) == len(versions)
    return texts


async def test_an_alias_moved_under_streams(city: City, operator: httpx.AsyncClient, tenants: list[Tenant]) -> None:
    tenant, versions = tenants[0], range(1, 6)
    await tenant.put("bot", *versions)
    path = f"{tenant.path}/aliases"
    made = await operator.post(path, json={"name": "support-bot", "adapter": "bot", "version": 1})
    assert made.status_code == 200, made.text
    clients = [await tenant.client(gateway) for gateway in range(2)]
    texts = await texts_of_versions(clients[0], versions)

    async def move_along() -> float:
        """Move the alias from the first version to the last; return the seconds of the slowest move to hold on both
        gateways."""
        assert (await operator.post(f"{path}/support-bot", json={"adapter": "bot", "version": 1})).status_code == 200
        await wait_until_version(clients, 1)
        traffic, moved_s = Traffic(texts), {1: time.monotonic()}
        async with asyncio.TaskGroup() as group, asyncio.timeout(PATIENCE_S):
            for number in range(NUM_STREAMS):
                group.create_task(traffic.run(clients[number % 2], number % 2))
            await traffic.until_both_have(1)
            for version in versions[1:]:
                if version % 2:  # nobody tells them
                    await city.cut_notifications()
                reply = await operator.post(f"{path}/support-bot", json={"adapter": "bot", "version": version})
                assert reply.status_code == 200, reply.text
                moved_s[version] = time.monotonic()
                await traffic.until_both_have(version)
            traffic.end.set()
        check_versions(traffic.answers, moved_s)
        return slowest_s(traffic.answers, moved_s)

    assert await least(move_along, WITHIN_S) < WITHIN_S


async def wait_until_version(clients: list[httpx.AsyncClient], version: int) -> None:
    body = {"model": "support-bot", "prompt": PROMPT, "max_tokens": 1}
    async with asyncio.timeout(PATIENCE_S):
        for client in clients:
            while (await client.post("/v1/completions", json=body)).headers["x-lorikeet-adapter"] != f"bot@{version}":
                pass


def check_versions(answers: list[Answer], moved_s: dict[int, float]) -> None:
    """Check that each answer is whole and of one version, and that some ran while the alias was moved."""
    for answer in answers:
        assert answer.status == 200
        assert len(set(answer.versions)) == 1, answer
        assert answer.adapter == f"bot@{answer.versions[0]}"
    under_way = [
        (answer, version)
        for version, at_s in moved_s.items()
        for answer in answers
        if answer.started_s < at_s < answer.ended_s
    ]
    assert any(answer.versions[0] < version for answer, version in under_way), "some finish on what they began with"


def slowest_s(answers: list[Answer], moved_s: dict[int, float]) -> float:
    """Return the longest delay, in seconds, with which a move took effect.

    A move is delayed until no answer of an older version begins, and until each gateway has begun one of the new
    version.
    """
    moves = moved_s.items()
    late_s = [each.started_s - at_s for each in answers for version, at_s in moves if each.versions[0] < version]
    for version, at_s in moves:
        for gateway in range(2):
            of_it = [answer for answer in answers if answer.gateway == gateway and answer.versions[0] == version]
            late_s.append(min(answer.started_s for answer in of_it) - at_s)
    return max(late_s)
