"""A compacted conversation goes on from a sealed summary, which nobody can read, change or take elsewhere.

The engine here repeats its prompt.
"""

from __future__ import annotations

import base64
import random
import tracemalloc
import zlib
from typing import Any

import httpx
import msgspec
import pytest

from gateway.domain.content.keys import ContentKey
from gateway.domain.errors import InvalidRequest
from gateway.openai.responses.compact import REQUEST
from gateway.openai.responses.conversation import SUMMARY
from gateway.openai.responses.sealed_items import VERSION, SealedItems
from gateway.support.cipher import Cipher, Place
from tests.gateway.conftest import House

NUM_MUTANTS, FULL_MUTANTS = 300, 100_000
MAX_MEMORY = 32 << 20
SAID = [
    {"role": "user", "content": "remember: blue"},
    {"role": "assistant", "content": "I will."},
    {"role": "user", "content": "and now: red"},
]


def compact_conversation(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    reply = http.post("/v1/responses/compact", json={"model": "tiny", "input": SAID} | fields)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def test_a_conversation_goes_on_from_its_summary(http: httpx.Client) -> None:
    made = compact_conversation(http)
    *kept, item = made["output"]
    assert made["object"] == "response.compaction" and made["usage"]["output_tokens"] > 0
    assert [each["content"][0]["text"] for each in kept] == ["remember: blue", "and now: red"]
    assert item["type"] == "compaction" and item["id"].startswith("cmp_")
    assert "blue" not in base64.b64decode(item["encrypted_content"]).decode("latin-1")
    asked = {"model": "tiny", "input": [item, {"role": "user", "content": "go on"}], "max_output_tokens": 60}
    said = http.post("/v1/responses", json=asked).json()["output"][0]["content"][0]["text"]
    assert said.startswith(f"user\n{SUMMARY}user\nremember")
    counted = http.post("/v1/responses/input_tokens", json={"model": "tiny", "input": asked["input"]}).json()
    assert counted["input_tokens"] == http.post("/v1/responses", json=asked).json()["usage"]["input_tokens"]
    again = compact_conversation(http, input=asked["input"], model="tiny:pirate")
    assert again["output"][-1]["type"] == "compaction", "an adapter of the same base reads it"


def test_the_model_is_asked_for_a_summary_of_what_was_said(http: httpx.Client) -> None:
    tokens = http.post("/v1/responses/input_tokens", json={"model": "tiny", "input": SAID}).json()["input_tokens"]
    more = [*SAID, {"role": "user", "content": REQUEST}]
    asked = http.post("/v1/responses/input_tokens", json={"model": "tiny", "input": more}).json()["input_tokens"]
    assert compact_conversation(http)["usage"]["input_tokens"] == asked > tokens


def test_a_summary_that_is_cut_off_says_so(http: httpx.Client) -> None:
    made = compact_conversation(http)
    assert made["usage"]["output_tokens"] > 0
    assert made["incomplete_details"] == {"reason": "max_output_tokens"}, "this engine goes on until a limit ends it"


def test_another_project_cannot_use_a_sealed_summary(house: House, http: httpx.Client) -> None:
    item = compact_conversation(http)["output"][-1]
    body = {"model": "tiny", "input": [item, SAID[0]]}
    headers = {"authorization": f"Bearer {house.globex.key}"}
    for path in ("/v1/responses", "/v1/responses/input_tokens", "/v1/responses/compact"):
        reply = http.post(path, json=body, headers=headers)
        assert reply.status_code == 400, reply.text
        error = reply.json()["error"]
        assert (error["code"], error["param"]) == ("invalid_encrypted_content", "input[0].encrypted_content")


@pytest.fixture
def sealed() -> SealedItems:
    return SealedItems(Cipher([ContentKey(b"k" * 32)]))


def open_summary(sealed: SealedItems, content: str, project: str = "proj_a", base: str = "tiny") -> str | None:
    try:
        return sealed.open(content, project, base, "compaction", "path")
    except InvalidRequest as refused:
        assert refused.code == "invalid_encrypted_content"
        return None


def test_nothing_but_what_was_sealed_here_is_opened(sealed: SealedItems, full: bool) -> None:
    content = sealed.seal("a summary of what was said", "proj_a", "tiny", "compaction")
    assert open_summary(sealed, content) == "a summary of what was said"
    assert open_summary(sealed, content, project="proj_b") is None
    assert open_summary(sealed, content, base="other") is None
    assert open_summary(SealedItems(Cipher([ContentKey(b"x" * 32)])), content) is None
    raw, rng = base64.b64decode(content), random.Random(0)
    for _ in range(FULL_MUTANTS if full else NUM_MUTANTS):
        mutant = bytearray(raw)
        match rng.randrange(3):
            case 0:
                mutant[rng.randrange(len(mutant))] ^= 1 << rng.randrange(8)
            case 1:
                del mutant[rng.randrange(len(mutant)) :]
            case _:
                place = rng.randrange(len(mutant))
                mutant[place:place] = rng.randbytes(rng.randrange(1, 9))
        assert open_summary(sealed, base64.b64encode(mutant).decode()) is None
    ends = [content + end for end in ("AAAA", "=", "==")]
    for text in ("", "é", "AQ==", "not base64!", content[:-4], *ends, "A" * 1000):
        assert open_summary(sealed, text) is None


def test_content_that_would_become_huge_costs_little(sealed: SealedItems) -> None:
    cipher = Cipher([ContentKey(b"k" * 32)])
    bomb = zlib.compress(b"\0" * (64 << 20), 1)
    made = cipher.seal(bomb, Place("proj_a", "responses.compaction", "tiny"))
    content = base64.b64encode(VERSION + msgspec.msgpack.encode(made)).decode()
    del bomb
    tracemalloc.start()
    try:
        assert open_summary(sealed, content) is None
        assert tracemalloc.get_traced_memory()[1] < MAX_MEMORY
    finally:
        tracemalloc.stop()
