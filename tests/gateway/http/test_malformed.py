"""No bytes of a request lead to a 5xx status, and every refusal has the error shape."""

from __future__ import annotations

import asyncio
import copy
import os
import random
from typing import Any

import msgspec
import pytest

from tests.gateway.conftest import House
from tests.gateway.hostile import FRAGMENTS, RawClient, Reply
from tests.gateway.live import make_tenant
from tests.gateway.openai.field_matrix import FIELDS

NUM_REQUESTS, NUM_REQUESTS_FULL = 500, 10_000
AT_ONCE = 8
DEEP: Any = "deep"
for _ in range(100):
    DEEP = [DEEP]
VALUES: list[Any] = [
    None, True, False, 0, -1, 1.5, -0.0, 1e308, 2**31, 2**63, -(2**63) - 1, 2**64 - 1, "", "x" * 5000, "\0", "💥", [],
    {}, [[]], [None], {"": ""}, {"type": "text"}, {"type": "x"}, ["x", 1], [1, "x"], [[1], 2], DEEP, {"a": DEEP}, "@",
]  # fmt: skip
TYPES = ["application/json", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]


class Request(msgspec.Struct, frozen=True):
    """A request to send, whose parts may be malformed."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


def malformed(rnd: random.Random) -> Request:
    """Return a request from the matrix, with some values or bytes replaced by random ones."""
    field = rnd.choice(FIELDS)
    case = rnd.choice([case for cases in field.cases.values() for case in cases])
    body = field.body(case)
    for _ in range(rnd.choice((0, 1, 1, 2, 3))):
        _spoil(rnd, body)
    data = msgspec.json.encode(body)[:400_000]
    for _ in range(rnd.choice((0, 0, 1, 2, 5))):
        data = _damage(rnd, data)
    headers = {"Content-Type": rnd.choice(TYPES), "Accept": rnd.choice(("*/*", "text/html", "x"))}
    if rnd.random() < 0.1:
        headers["Content-Encoding"] = rnd.choice(("gzip", "br", "identity", "x"))
    method = "POST" if rnd.random() < 0.95 else rnd.choice(("GET", "PUT", "DELETE", "PATCH"))
    return Request(method, field.endpoint + rnd.choice(("", "", "", "/", "?x=1", "//")), headers, data)


def _spoil(rnd: random.Random, body: dict[str, Any]) -> None:
    """Change, remove or add one value of a body, at any depth."""
    at: Any = body
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return
        key = rnd.choice(keys)
        below = at[key]
        if not isinstance(below, dict | list) or not below or rnd.random() < 0.4:
            break
        at = below
    match rnd.randrange(5):
        case 0:
            del at[key]
        case 1 if isinstance(at, dict):
            at[rnd.choice(FRAGMENTS)] = copy.deepcopy(rnd.choice(VALUES))
        case 2:
            at[key] = rnd.choice(FRAGMENTS)
        case _:
            at[key] = copy.deepcopy(rnd.choice(VALUES))


def _damage(rnd: random.Random, data: bytes) -> bytes:
    place, size = rnd.randrange(len(data) + 1), rnd.choice((1, 1, 2, 10))
    match rnd.randrange(5):
        case 0:
            return data[:place]
        case 1:
            return data[:place] + data[place + size :]
        case 2:
            return data[:place] + rnd.randbytes(size) + data[place:]
        case 3:
            return data[:place] + data[place : place + size] * 50 + data[place:]
        case _:
            return data[:place] + rnd.choice((b'"', b"{", b"]", b",", b"\\u", b"1e", b"null", b"NaN")) + data[place:]


def complaint(reply: Reply) -> str | None:
    if reply.status >= 500:
        return f"status {reply.status}"
    if reply.status < 400:
        return None
    try:
        error = reply.error
    except (AssertionError, KeyError, TypeError, msgspec.DecodeError) as problem:
        return f"not the error shape: {problem!r}"
    if not isinstance(error["message"], str) or len(error["message"]) > 1000:
        return "no message, or one that goes on and on"
    return None


async def test_no_request_whatsoever_is_a_fault_of_the_server(house: House, full: bool) -> None:
    first = int(os.environ.get("FIRST_SEED", "0"))
    seeds = iter(range(first, first + (NUM_REQUESTS_FULL if full else NUM_REQUESTS)))
    wrong, statuses = [], set()

    async def worker() -> None:
        client = RawClient(house.gateway.port)
        try:
            for seed in seeds:
                request = malformed(random.Random(seed))
                headers = {"Authorization": f"Bearer {house.acme.key}", **request.headers}
                try:
                    reply = await client.send(request.method, request.path, headers, request.body)
                except (OSError, EOFError, TimeoutError) as error:
                    await client.close()
                    wrong.append(f"seed {seed}: no answer: {error!r}: {request.path} {request.body[:300]!r}")
                    continue
                statuses.add(reply.status)
                if (why := complaint(reply)) is not None:
                    wrong.append(f"seed {seed}: {why}: {request.method} {request.path} {request.body[:300]!r}: {reply}")
        finally:
            await client.close()

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    assert wrong == [], "\n".join(wrong)
    assert {200, 400, 404, 405} <= statuses


SCHEMAS = {
    "response_format": b'"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":%b}}',
    "structured_outputs": b'"structured_outputs":{"json":%b}',
    "tools": b'"tools":[{"type":"function","function":{"name":"f","parameters":%b}}]',
    "functions": b'"functions":[{"name":"f","parameters":%b}]',
}
"""The fields of a chat request that take any object."""


@pytest.mark.parametrize("place", [*SCHEMAS, "arguments"])
async def test_free_form_fields_of_any_depth_are_read_or_refused(house: House, place: str) -> None:
    """A depth that the stack allows to read may be too deep to render, to write and to compile."""
    client, faults = RawClient(house.gateway.port), []
    tenant = await make_tenant(house.dsn, f"nests {place}", "poet", "3")  # its pace is used up at the end
    headers = {"Authorization": f"Bearer {tenant.key}"}
    try:
        for depth in [90, 110, 200, 400, *range(800, 1000, 4), 1500, 20_000]:
            schema = b'{"not":' * depth + b"{}" + b"}" * depth
            call, field = b"", SCHEMAS.get(place, b'"n":1').replace(b"%b", schema)
            if place == "arguments":
                nested = b"[" * depth + b"1" + b"]" * depth  # short, as calls are part of the prompt
                arguments = msgspec.json.encode((b'{"n":%b}' % nested).decode())
                call = b',{"role":"assistant","function_call":{"name":"f","arguments":%b}}' % arguments
            messages = b'"messages":[{"role":"user","content":"x"}%b]' % call
            body = b'{"model":"tiny","max_tokens":1,%b,%b}' % (messages, field)
            reply = await client.send("POST", "/v1/chat/completions", headers, body)
            # Arguments that cannot be read at all are shown as the text that they are.
            is_wrong = (depth < 100 and reply.status != 200) or (depth in (110, 200, 400) and reply.status != 400)
            if (why := complaint(reply)) is not None or is_wrong:
                faults.append((depth, why, reply.status))
    finally:
        await client.close()
    assert faults == []
