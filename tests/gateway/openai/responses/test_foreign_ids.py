"""An id of another project, in a path or in a body, is answered as one that is nobody's: alike to the byte and, which
takes `--full` to measure, in the same time."""

from __future__ import annotations

import itertools
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
"""Each has a pace of its own, which would refuse what is measured."""

NUM_SAMPLES = 1500
MAX_AUC = 0.55

CREATE: dict[str, Any] = {"model": "tiny", "input": "x", "max_output_tokens": 1}


class Ids(msgspec.Struct, frozen=True):
    """What one owner made, or nobody."""

    response: str
    conversation: str
    item: str
    said: str
    """An item of the response."""


def requests(ids: Ids) -> dict[str, tuple[str, str, dict[str, Any] | None]]:
    """Return every request that names one of the ids, by a name of its own."""
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


async def made_by(client: httpx.AsyncClient, key: Key) -> Ids:
    """Have a project make one of each."""
    found = []
    for path, body in (("responses", CREATE), ("conversations", {"items": [{"role": "user", "content": "x"}]})):
        reply = await client.post(f"/v1/{path}", json=body, headers=key.headers)
        assert reply.status_code == 200, reply.text
        found.append(reply.json())
    response, conversation = found
    listed = await client.get(f"/v1/conversations/{conversation['id']}/items", headers=key.headers)
    return Ids(response["id"], conversation["id"], listed.json()["data"][0]["id"], response["output"][0]["id"])


def nobodys() -> Ids:
    part = new_id("resp").removeprefix("resp_")
    return Ids(f"resp_{part}", new_id("conv"), f"msg_{part}_0", f"msg_{part}_1")


@pytest.fixture
async def client(house: House) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=house.url, timeout=PATIENCE_S) as client:
        yield client


async def test_ids_of_others_and_deleted_ones_are_nobodys(client: httpx.AsyncClient, house: House, full: bool) -> None:
    keys = [await make_key(house.dsn, f"ids-{new_id('x')}") for _ in range((FULL_CALLERS if full else NUM_CALLERS) + 1)]
    await execute(house.dsn, f"UPDATE projects SET store_days = 1 WHERE id IN {tuple(key.project_id for key in keys)}")
    stranger, *callers = keys
    gone = await made_by(client, callers[0])
    for path in (f"responses/{gone.response}", f"conversations/{gone.conversation}"):
        assert (await client.delete(f"/v1/{path}", headers=callers[0].headers)).status_code == 200
    ids = {"theirs": await made_by(client, stranger), "deleted": gone, "nobody's": nobodys()}
    asked = {owner: requests(each) for owner, each in ids.items()}
    in_turn = itertools.cycle(callers)

    async def answer(owner: str, name: str) -> tuple[int, bytes]:
        method, path, body = asked[owner][name]
        reply = await client.request(method, path, json=body, headers=next(in_turn).headers)
        content = reply.content
        for id in msgspec.structs.astuple(ids[owner]):
            content = content.replace(id.encode(), b"ID")
        return reply.status_code, content

    for name in asked["theirs"]:
        answers = {await answer(owner, name) for owner in ids}
        assert len(answers) == 1, (name, answers)
        is_in_path = any(id in asked["theirs"][name][1] for id in msgspec.structs.astuple(ids["theirs"]))
        assert answers.pop()[0] == (404 if is_in_path else 400), name
    if full:
        await _measure(list(ids), list(asked["theirs"]), answer)


async def _measure(owners: list[str], names: list[str], answer: Any) -> None:
    told, rng = {}, random.Random(0)
    for name in names:
        seconds: dict[str, list[float]] = {owner: [] for owner in owners}
        for _ in range(NUM_SAMPLES):
            for owner in rng.sample(owners, len(owners)):
                began_s = time.perf_counter()
                status, content = await answer(owner, name)
                seconds[owner].append(time.perf_counter() - began_s)
                assert status in (400, 404), content
        for owner in ("theirs", "deleted"):
            told[f"{name}, {owner}"] = auc(seconds["nobody's"], seconds[owner])
        print(f"{name}: " + ", ".join(f"{owner} {told[f'{name}, {owner}']:.3f}" for owner in ("theirs", "deleted")))
    assert {name: each for name, each in told.items() if not 1 - MAX_AUC <= each <= MAX_AUC} == {}
