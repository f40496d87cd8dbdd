"""A completion continues the text of its prompt; a turn of a chat does so only if it continues a message."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.openai.chat import handler as chat
from gateway.openai.chat.wire import ChatCompletionRequest
from gateway.openai.completions import handler as completions
from gateway.openai.completions.wire import CompletionRequest

ANSWER = {"role": "assistant", "content": "It is"}


@pytest.mark.parametrize("prompt", ["x", [1, 2]])
def test_a_completion_follows_its_prompt(prompt: Any) -> None:
    asked = completions._text_request(CompletionRequest(model="tiny", prompt=prompt), prompt, None)
    assert asked.style.follows_prompt


@pytest.mark.parametrize("continues", [True, False])
def test_a_turn_of_chat_follows_its_prompt_only_where_it_continues_a_message(continues: bool) -> None:
    body = {"model": "tiny", "messages": [ANSWER], "continue_final_message": continues}
    wire = msgspec.convert(body, ChatCompletionRequest)
    asked = chat._text_request(wire, "default", chat._tools(wire))
    assert asked.style.follows_prompt is continues
