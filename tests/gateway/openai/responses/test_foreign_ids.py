"""Another project's id, in a path or in a body, is answered like an id that does not exist: the same to the byte
and, which takes `--full` to measure, in the same time."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from engine.bench.measures import auc
from gateway.db.ids import new_id
from tests.gateway.conftest import House
from tests.installation.databases import execute
from tests.installation.tenants import Key, make_key
from tests.patience import PATIENCE_S

NUM_CALLERS, FULL_CALLERS = 1, 20
"""The number of callers, at small and at full size. Each has a pace of its own, since one caller's
pace would refuse the requests of all."""

NUM_SAMPLES = 1000
MAX_AUC = 0.55
PAUSE_S = 1.0
"""Seconds to wait before a request that was refused for its pace is sent again."""

CREATE: dict[str, Any] = {"model": "tiny", "input": "x", "max_output_tokens": 1}


class Ids(msgspec.Struct, frozen=True):
    """Ids of objects that one owner made, or of objects that do not exist."""

    response: str
    conversation: str
    item: str
    said: str
    """The id of an item of the response."""


def requests(ids: Ids) -> dict[str, tuple[str, str, dict[str, Any] | None]]:
    """Return the requests that name one of the ids, as (method, path, body) by a name of their own."""
    response, conversation = f"/v1/responses/{ids.response}", f"/v1/conversations/{ids.conversation}"
    reference = [{"type": "item_reference", "id": ids.said}]
    counted = {"model": "tiny", "input": "x"}
    return {
        "read a response": ("GET", response, None),
        "list its input": ("GET", f"{response}/input_items", None),
        "cancel it": ("POST", f"{response}/cancel", {}),
        "delete it": ("DELETE", response, None),
        "read a conversation": ("GET", conversation, None),
        "change it": ("POST", conversation, {"metadata": {}}),
        "list its items": ("GET", f"{conversation}/items", None),
        "add to it": ("POST", f"{conversation}/items", {"items": [{"role": "user", "content": "x"}]}),
        "read an item": ("GET", f"{conversation}/items/{ids.item}", None),
        "delete an item": ("DELETE", f"{conversation}/items/{ids.item}", None),
        "delete a conversation": ("DELETE", conversation, None),
        "previous_response_id": ("POST", "/v1/responses", CREATE | {"previous_response_id": ids.response}),
        "conversation": ("POST", "/v1/responses", CREATE | {"conversation": ids.conversation}),
        "item_reference": ("POST", "/v1/responses", CREATE | {"input": reference}),
        "counted previous_response_id": (
            "POST",
            "/v1/responses/input_tokens",
            counted | {"previous_response_id": ids.response},
        ),
        "compacted previous_response_id": (
            "POST",
            "/v1/responses/compact",
            counted | {"previous_response_id": ids.response},
        ),
    }


NAMES = (*requests(Ids("", "", "", "")),)
IN_PATHS = NAMES[: NAMES.index("previous_response_id")]


async def made_by(client: httpx.AsyncClient, key: Key) -> Ids:
    """Create one object of each kind in a project; return the ids."""
    found = []
    for path, body in (("responses", CREATE), ("conversations", {"items": [{"role": "user", "content": "x"}]})):
        reply = await client.post(f"/v1/{path}", json=body, headers=key.headers)
        assert reply.status_code == 200, reply.text
        found.append(reply.json())
    response, conversation = found
    listed = await client.get(f"/v1/conversations/{conversation['id']}/items", headers=key.headers)
    return Ids(response["id"], conversation["id"], listed.json()["data"][0]["id"], response["output"][0]["id"])


def invented_ids() -> Ids:
    part = new_id("resp").removeprefix("resp_")
    return Ids(f"resp_{part}", new_id("conv"), f"msg_{part}_0", f"msg_{part}_1")


class Desk(msgspec.Struct, frozen=True):
    """Callers that request others' objects, deleted objects, and objects that never existed."""

    url: str
    callers: list[Key]
    ids: dict[str, Ids]

    async def answer(self, client: httpx.AsyncClient, owner: str, name: str, number: int) -> tuple[int, bytes]:
        """Return the status and the body of a reply, without the ids that were asked for."""
        method, path, body = requests(self.ids[owner])[name]
        headers = self.callers[number % len(self.callers)].headers
        reply = await client.request(method, f"{self.url}{path}", json=body, headers=headers)
        content = reply.content
        for id in msgspec.structs.astuple(self.ids[owner]):
            content = content.replace(id.encode(), b"ID")
        return reply.status_code, content


@pytest.fixture(scope="module")
def desk(house: House, full: bool) -> Desk:
    async def made() -> Desk:
        num_keys = (FULL_CALLERS if full else NUM_CALLERS) + 1
        keys = [await make_key(house.dsn, f"ids-{new_id('x')}") for _ in range(num_keys)]
        storing = tuple(key.project_id for key in keys)
        await execute(house.dsn, f"UPDATE projects SET store_days = 1 WHERE id IN {storing}")
        stranger, *callers = keys
        async with httpx.AsyncClient(base_url=house.url, timeout=PATIENCE_S) as client:
            theirs, gone = await made_by(client, stranger), await made_by(client, callers[0])
            for path in (f"responses/{gone.response}", f"conversations/{gone.conversation}"):
                assert (await client.delete(f"/v1/{path}", headers=callers[0].headers)).status_code == 200
        return Desk(house.url, callers, {"theirs": theirs, "deleted": gone, "nobody's": invented_ids()})

    return asyncio.run(made())


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        yield client


async def test_foreign_and_deleted_ids_are_answered_exactly_like_invented_ones(
    client: httpx.AsyncClient, desk: Desk
) -> None:
    for name in NAMES:
        answers = {await desk.answer(client, owner, name, 0) for owner in desk.ids}
        assert len(answers) == 1, (name, answers)
        assert answers.pop()[0] == (404 if name in IN_PATHS else 400), name


@pytest.mark.parametrize("name", NAMES)
async def test_foreign_and_deleted_ids_take_as_long_as_invented_ones(
    client: httpx.AsyncClient, desk: Desk, full: bool, name: str
) -> None:
    if not full:
        pytest.skip("measures time: runs with --full")
    rng, seconds = random.Random(0), {owner: list[float]() for owner in desk.ids}
    for number in range(int(os.environ.get("NUM_SAMPLES", NUM_SAMPLES))):
        for owner in rng.sample([*seconds], len(seconds)):
            status = 429
            while status == 429:  # deletions have a pace, and what is refused is not measured
                began_s = time.perf_counter()
                status, content = await desk.answer(client, owner, name, number)
                taken_s = time.perf_counter() - began_s
                await asyncio.sleep(PAUSE_S if status == 429 else 0)
            seconds[owner].append(taken_s)
            assert status in (400, 404), content
    told = {owner: auc(seconds["nobody's"], seconds[owner]) for owner in ("theirs", "deleted")}
    print(f"\nAUC of {name}: " + ", ".join(f"{owner} {each:.3f}" for owner, each in told.items()))
    assert all(1 - MAX_AUC <= each <= MAX_AUC for each in told.values()), told
