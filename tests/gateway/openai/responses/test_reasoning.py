"""Reasoning: an item before the answer, sealed alike each time, and given back to the model with its answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.protocol import TokenLogprobs
from gateway.backends.generation import Piece, Token
from gateway.domain.content.keys import ContentKey
from gateway.domain.errors import InvalidRequest
from gateway.openai.responses.conversation import own_items, template_messages
from gateway.openai.responses.items import InputItem
from gateway.openai.responses.sealed_items import SealedItems
from gateway.support.cipher import Cipher
from tests.gateway.openai.responses.test_progress import reply_to

PLACE = ("proj_a", "base", "reasoning")


@pytest.fixture
def sealed() -> SealedItems:
    return SealedItems(Cipher([ContentKey(b"s" * 32)]))


def messages(sealed: SealedItems, *items: dict[str, Any], project_id: str = "proj_a") -> list[dict[str, Any]]:
    """Return the messages for the template that these items become, in a project's request to the base."""
    own = own_items(msgspec.convert(list(items), list[InputItem]), {})
    return template_messages(
        None, own, opened=lambda content, kind, path: sealed.open(content, project_id, "base", kind, path)
    )


ASKED = {"role": "user", "content": "2 + 2?"}
ANSWERED = {"role": "assistant", "content": "4"}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "easy"}]}


def test_reasoning_is_shown_with_the_answer_that_followed(sealed: SealedItems) -> None:
    hidden = {"type": "reasoning", "summary": [], "encrypted_content": sealed.seal("easy", *PLACE)}
    for item in (THOUGHT, hidden):
        said = messages(sealed, ASKED, item, ANSWERED, ASKED)
        assert [message.get("reasoning_content") for message in said] == [None, "easy", None]
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "a", "output": "4"}
    said = messages(sealed, ASKED, hidden, call, result)
    assert said[1]["reasoning_content"] == "easy" and said[1]["tool_calls"]
    assert all("reasoning_content" not in message for message in messages(sealed, ASKED, THOUGHT, ASKED))


def test_reasoning_that_is_there_in_plain_text_goes_on_with_another_base_model(sealed: SealedItems) -> None:
    stored = THOUGHT | {"encrypted_content": sealed.seal("easy", "proj_a", "another base", "reasoning")}
    assert messages(sealed, ASKED, stored, ANSWERED)[1]["reasoning_content"] == "easy"


def test_the_same_reasoning_is_sealed_alike_and_opened_nowhere_else(sealed: SealedItems) -> None:
    assert sealed.seal("easy", *PLACE) == sealed.seal("easy", *PLACE)
    assert sealed.seal("easy", *PLACE) != sealed.seal("easy", "proj_b", "base", "reasoning")
    assert sealed.seal("easy", *PLACE) != sealed.seal("hard", *PLACE)
    other_kind = {"type": "compaction", "encrypted_content": sealed.seal("easy", *PLACE)}
    hidden = {"type": "reasoning", "summary": [], "encrypted_content": sealed.seal("easy", *PLACE)}
    with pytest.raises(InvalidRequest):
        messages(sealed, ASKED, other_kind)
    with pytest.raises(InvalidRequest):
        messages(sealed, ASKED, hidden, ANSWERED, project_id="proj_b")


def test_log_probabilities_are_of_the_answers_tokens_alone() -> None:
    said = ["<think>", "hm", "</think>", "\n\n", "4", "!"]
    starts = [sum(map(len, said[:place])) for place in range(len(said))]
    reply = reply_to({"top_logprobs": 1}, thinks=True)
    events = reply.events(is_padded=False)
    for place, (text, start) in enumerate(zip(said, starts, strict=True)):
        events.encode_each([Piece(0, text, [Token(place, start, TokenLogprobs(-0.5, [], []))], num_tokens=place + 1)])
    events.encode_each([Piece(0, "", finish_reason="stop", num_tokens=len(said))])
    events.failure_events(InvalidRequest("", param=None, code=""))  # the kind of end does not matter
    reasoning, message = msgspec.json.decode(msgspec.json.encode(events.response.output))
    assert (reasoning["content"][0]["text"], message["content"][0]["text"]) == ("hm", "4!")
    assert len(message["content"][0]["logprobs"]) == 2
    assert events.response.usage is not None
    assert events.response.usage.output_tokens_details.reasoning_tokens == 3
