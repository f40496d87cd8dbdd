"""`truncation: auto`: the oldest turns go, no more than it takes, and calls with their results."""

from __future__ import annotations

import random
from typing import Any

import httpx
import pytest

from gateway.openai.responses.truncation import turn_starts, without_oldest

MESSAGES = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "", "tool_calls": []},
    {"role": "tool", "content": "result"},
    {"role": "assistant", "content": "1"},
    {"role": "user", "content": "two"},
    {"role": "system", "content": "late"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "three"},
]


@pytest.mark.parametrize(
    ("num_turns", "kept"), [(0, range(9)), (1, (0, 5, 6, 7, 8)), (2, (0, 6, 8))], ids=["none", "one", "two"]
)
def test_whole_turns_are_left_out_and_system_messages_stay(num_turns: int, kept: Any) -> None:
    assert turn_starts(MESSAGES) == [1, 5, 8]
    assert without_oldest(MESSAGES, num_turns) == [MESSAGES[place] for place in kept]


def test_a_conversation_that_does_not_fit_loses_its_oldest_turns_alone(http: httpx.Client) -> None:
    rng = random.Random(0)
    words = [f"word{number} " + "x" * rng.randrange(80) for number in range(30)]
    items = []
    for word in words:
        items += [{"role": "user", "content": word}, {"role": "assistant", "content": "yes"}]
    items.append({"role": "user", "content": "the last one"})
    asked = {"model": "tiny", "input": items, "truncation": "auto", "instructions": "Be brief."}
    reply = http.post("/v1/responses", json=asked | {"max_output_tokens": 100}).json()
    assert reply["truncation"] == "auto" and 300 < reply["usage"]["input_tokens"] <= 412
    refused = http.post("/v1/responses", json=asked | {"truncation": "disabled"})
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "context_length_exceeded"
    counts = [
        http.post(
            "/v1/responses/input_tokens", json={"model": "tiny", "instructions": "Be brief.", "input": rest}
        ).json()
        for rest in (items[2 * gone :] for gone in range(31))
    ]
    fitting = [each["input_tokens"] for each in counts if each["input_tokens"] + 100 <= 512]
    assert reply["usage"]["input_tokens"] == max(fitting)
