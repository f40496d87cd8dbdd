"""Every long conversation is rendered and tokenized outside of the event loop, wherever in it its length is."""

from __future__ import annotations

import pytest

from gateway.backends.base import Message
from gateway.pipeline.tokenizing import THREAD_ABOVE_CHARS, is_long

LONG = "x" * (THREAD_ABOVE_CHARS + 1)


def message_with_call(name: str, arguments: object) -> Message:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": LONG}],
        [{"role": "user", "content": "x", "name": LONG}],
        [message_with_call("f", {"at": LONG})],
        [message_with_call("f", {LONG: 1})],
        [message_with_call("f", [[number] for number in range(THREAD_ABOVE_CHARS // 16)])],
        [message_with_call("f", LONG)],
        [message_with_call(LONG, {})],
        [{"role": "user", "content": "x"}] * 1000,
    ],
    ids=["content", "name", "arguments", "key", "numbers", "text of arguments", "function", "messages"],
)
def test_a_conversation_is_long_by_all_that_it_holds(messages: list[Message]) -> None:
    assert is_long(messages)


def test_a_usual_conversation_is_not_long() -> None:
    assert not is_long(
        [{"role": "user", "content": "What is the weather like?"}, message_with_call("weather", {"at": "Paris"})]
    )
