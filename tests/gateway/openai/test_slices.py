"""Large replies are encoded in many turns of the event loop, to the same bytes as at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
import pytest

from engine.protocol import TokenLogprobs
from gateway.backends.generation import Token
from gateway.openai.shared.logprobs import (
    chat_logprobs,
    prompt_logprobs,
    text_logprobs,
    whole_chat_logprobs,
    whole_text_logprobs,
)
from gateway.openai.shared.slices import encode_parts

T = TypeVar("T")

TOKENS = [
    Token(number, number, TokenLogprobs(-1.0, list(range(20)), [-0.5 - each for each in range(20)]))
    for number in range(1000)
]


def to_bytes(token_id: int) -> bytes:
    return f"token {token_id}".encode()


async def turns_of(work: Coroutine[Any, Any, T]) -> tuple[T, int]:
    """Return the result of an awaitable, and the number of turns that other tasks had meanwhile."""
    task, num_turns = asyncio.ensure_future(work), 0
    while not task.done():
        await asyncio.sleep(0)
        num_turns += 1
    return task.result(), num_turns


async def test_parts_are_the_whole_and_others_go_on_between() -> None:
    parts = [{"text": "x" * 1000, "number": number} for number in range(200)]
    found, num_turns = await turns_of(encode_parts(parts))
    assert msgspec.json.encode(found) == msgspec.json.encode(parts)
    assert num_turns >= 10


@pytest.mark.parametrize("kind", ["chat", "text"])
async def test_log_probabilities_of_a_whole_reply_are_those_of_its_pieces(kind: str) -> None:
    whole, at_once = (whole_chat_logprobs, chat_logprobs) if kind == "chat" else (whole_text_logprobs, text_logprobs)
    found, num_turns = await turns_of(whole(TOKENS, to_bytes))
    assert msgspec.json.encode(found) == msgspec.json.encode(at_once(TOKENS, to_bytes))
    assert num_turns >= 15


async def test_log_probabilities_of_a_prompt_have_null_for_its_first_token() -> None:
    first = Token(0, 0, None)
    found, num_turns = await turns_of(prompt_logprobs([first, *TOKENS], to_bytes))
    shown = msgspec.json.decode(msgspec.json.encode(found))
    assert (len(shown), shown[0]) == (1001, None)
    assert shown[1]["0"] == {"logprob": -0.5, "rank": 1, "decoded_token": "token 0"}
    assert num_turns >= 15
