"""Counted tokens equal billed tokens: random conversations with tools, thinking, system messages and answers'
beginnings."""

from __future__ import annotations

import random
from typing import Any

import httpx

from tests.gateway.conftest import House
from tests.gateway.openai.test_tool_calls import FIRST
from tests.seeds import seeds

NUM_CONVERSATIONS, FULL_CONVERSATIONS = 25, 10_000
WORDS = ["hello", " there", "\n", "é", "😀", "<|im_end|>", "x" * 20, "{}"]


def text(rng: random.Random) -> str:
    return "".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 6))) + "."


def made_up(rng: random.Random) -> dict[str, Any]:
    """Return random fields of a request that become its prompt."""
    turns: list[dict[str, Any]] = []
    for number in range(rng.randrange(3)):
        turns.append({"role": "user", "content": text(rng)})
        if rng.random() < 0.3:
            call = {"type": "tool_use", "id": f"t{number}", "name": "f", "input": {"a": text(rng)}}
            result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": text(rng)}
            turns += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        turns.append({"role": "assistant", "content": [{"type": "text", "text": text(rng)}]})
        if rng.random() < 0.3:
            turns.append({"role": "system", "content": text(rng)})
    turns.append({"role": "user", "content": FIRST if rng.random() < 0.2 else text(rng)})
    if rng.random() < 0.2:
        turns.append({"role": "assistant", "content": text(rng)})
    body: dict[str, Any] = {"model": rng.choice(["tiny", "tiny:pirate"]), "messages": turns}
    if rng.random() < 0.5:
        body["system"] = [{"type": "text", "text": text(rng), "cache_control": {"type": "ephemeral"}}]
    if rng.random() < 0.4:
        body["tools"] = [{"name": "f", "description": text(rng), "input_schema": {"type": "object"}}]
    if rng.random() < 0.3:
        body["thinking"] = {"type": "adaptive"}
    return body


def test_the_tokens_that_are_counted_are_those_that_are_billed(house: House, http: httpx.Client, full: bool) -> None:
    for number in seeds(NUM_CONVERSATIONS, FULL_CONVERSATIONS, full=full):
        body = made_up(random.Random(number))
        counted = http.post("/v1/messages/count_tokens", json=body)
        while counted.status_code == 429:  # a pace for what costs nothing
            counted = http.post("/v1/messages/count_tokens", json=body)
        reply = http.post("/v1/messages", json=body | {"max_tokens": 1})
        assert (counted.status_code, reply.status_code) == (200, 200), (number, counted.text, reply.text)
        usage = reply.json()["usage"]
        kinds = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        assert counted.json() == {"input_tokens": sum(usage[kind] for kind in kinds)}, number
