"""`truncation: auto` leaves out the oldest turns, no more than needed, and tool calls together with their results."""

from __future__ import annotations

import random
from typing import Any, cast

import httpx
import pytest

from gateway.backends.base import Message
from gateway.openai.responses.tools import response_tools
from gateway.openai.responses.truncation import truncated, turn_starts, without_oldest
from gateway.pipeline.context import RequestContext
from gateway.pipeline.pipeline import Pipeline
from gateway.pipeline.requests import Conversation
from gateway.text.options import Rendering

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


class CountingPipeline:
    """A fake pipeline that counts each word as a token, and records each count."""

    def __init__(self, most: int) -> None:
        self.tokens, self.most, self.asked = self, most, list[int]()

    async def count_and_limit(self, context: Any, prompt: Conversation, field: str) -> tuple[int, int]:
        self.asked.append(sum(len(message["content"].split()) for message in prompt.messages))
        return self.asked[-1], self.most


@pytest.mark.parametrize(
    ("seed", "word", "at_most"), [(0, "four", 4), (1, "misleads" * 20, 15)], ids=["even", "uneven"]
)
async def test_a_long_conversation_is_counted_a_few_times_and_each_is_charged(
    seed: int, word: str, at_most: int
) -> None:
    rng = random.Random(seed)
    messages: list[Message] = []
    for number in range(1000):
        said = " ".join(rng.choice(("four", word)) for _ in range(20)) if number < 500 else "four " * 20
        messages += [{"role": "user", "content": said}, {"role": "assistant", "content": "yes"}]
    counts, charged = CountingPipeline(3000), list[int]()
    pipeline, context = cast("Pipeline", counts), cast("RequestContext", None)
    tools = response_tools(None, None, None)
    kept = await truncated(pipeline, context, messages, tools, Rendering(), 100, charged.append)
    fitting = (3000 - 100) // 21
    assert kept == messages[-2 * fitting :]
    assert len(counts.asked) <= at_most and len(charged) == len(counts.asked) - 1
    assert all(4 * num_tokens <= num_chars for num_tokens, num_chars in zip(counts.asked[1:], charged, strict=True))


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
    counted = http.post("/v1/responses/input_tokens", json=asked).json()["input_tokens"]
    assert counted == http.post("/v1/responses", json=asked).json()["usage"]["input_tokens"]
