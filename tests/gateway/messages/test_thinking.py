"""Thinking is separated from the answer however the model's text is split, and is signed; a client
can send it back only with its signature."""

from __future__ import annotations

import random
from typing import Any

import httpx
import msgspec
import pytest

from gateway.messages.conversation import template_turns
from gateway.messages.partial_json import object_of
from gateway.messages.wire import ContextEdit, ContextManagement, MessageParam
from gateway.text.thinking import ThinkingText, begins_thinking
from tests.gateway.conftest import House
from tests.gateway.messages.laws import check, read
from tests.gateway.messages.test_progress import cut

CASES = [
    (False, "<think>\nhm\n\nwell\n</think>\n\nYes.", "hm\n\nwell", "Yes."),
    (False, "  <think>hm</think>Yes.", "hm", "Yes."),
    (False, "Yes <think>hm</think>", "", "Yes <think>hm</think>"),
    (False, "<think>\n\n</think>\n\nYes.", "", "Yes."),
    (False, "<think>hm</thin", "hm</thin", ""),
    (False, "<thin", "", "<thin"),
    (False, "", "", ""),
    (True, "hm\n</think>\nYes.", "hm", "Yes."),
    (True, "hm", "hm", ""),
]


@pytest.mark.parametrize(("is_open", "said", "thinking", "text"), CASES)
def test_thinking_is_separated_from_the_answer_however_it_is_split(
    is_open: bool, said: str, thinking: str, text: str
) -> None:
    for number in range(50):
        found = {"thinking": "", "text": ""}
        parser = ThinkingText(is_open=is_open)
        for part in cut(random.Random(number), said):
            for kind, more in parser.push(part):
                assert more
                found[kind] += more
        for kind, more in parser.finish():
            found[kind] += more
        assert found == {"thinking": thinking, "text": text}


def test_a_prompt_may_begin_the_thinking_itself() -> None:
    assert begins_thinking(b"<|im_start|>assistant\n<think>\n")
    assert not begins_thinking(b"<think>\n\n</think>\n\n")


def test_arguments_that_were_cut_off_keep_their_whole_values() -> None:
    whole = '{"a": "x\\"}", "b": [1, {"c": null}], "d": {"e": [], "f": 2}}'
    assert object_of(whole[:-1]) == {"a": 'x"}', "b": [1, {"c": None}], "d": {"e": [], "f": 2}}
    assert object_of('{"a": 1, "b": [1, 2') == {"a": 1, "b": [1]}
    for size in range(len(whole)):
        assert isinstance(object_of(whole[:size]), dict)
    assert object_of("[1]") == object_of("") == {}


def ask(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post("/v1/messages", json={"model": "tiny", "max_tokens": 200} | fields)


def test_thinking_is_signed_and_refused_where_it_was_changed(http: httpx.Client) -> None:
    says = {"role": "user", "content": "<think>\nhm, well\n</think>\n\nYes. END"}
    asked: dict[str, Any] = {
        "messages": [says],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "thinking": {"type": "adaptive"},
        "stop_sequences": ["END"],
    }
    message = check(read(ask(http, stream=True, **asked).text))
    assert message is not None
    thought, answer = message["content"]
    assert (thought["thinking"], answer["text"]) == ("hm, well", "Yes. ")
    told = ask(http, **asked).json()
    assert [block["type"] for block in told["content"]] == ["thinking", "text"]
    turns = [says, {"role": "assistant", "content": [thought, answer]}, {"role": "user", "content": "and now?"}]
    assert ask(http, messages=turns, max_tokens=1).status_code == 200
    wrong = [thought | {"thinking": "hm, no"}, thought | {"signature": thought["signature"][:-8] + "AAAAAAA="}]
    for block in wrong:
        turns[1] = {"role": "assistant", "content": [block, answer]}
        reply = ask(http, messages=turns)
        assert reply.status_code == 400 and "signature" in reply.json()["error"]["message"]


def test_thinking_that_is_left_out_comes_back_in_its_signature(house: House, http: httpx.Client) -> None:
    says = {"role": "user", "content": "<think>\nhm, well\n</think>\n\nYes. END"}
    asked: dict[str, Any] = {
        "messages": [says],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "thinking": {"type": "adaptive", "display": "omitted"},
        "stop_sequences": ["END"],
    }
    message = check(read(ask(http, stream=True, **asked).text))
    assert message is not None
    thought, answer = message["content"]
    assert thought["thinking"] == "" and "well" not in thought["signature"] and answer["text"] == "Yes. "
    turns = [says, {"role": "assistant", "content": [thought, answer]}, {"role": "user", "content": "and now?"}]
    assert ask(http, messages=turns, max_tokens=1).status_code == 200
    headers = {"x-api-key": house.globex.key}
    foreign = http.post("/v1/messages", headers=headers, json={"model": "tiny", "max_tokens": 1, "messages": turns})
    assert foreign.status_code == 400 and "signature" in foreign.json()["error"]["message"]


def test_the_thinking_of_earlier_turns_is_left_out_where_that_is_asked_for() -> None:
    turn = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "yes"}]
    said = [{"role": "user", "content": "go"}, {"role": "assistant", "content": turn}] * 3
    turns = [_turn(each) for each in [*said, said[0]]]
    for keep, num_kept in (("all", 3), (None, 1)):
        edits = ContextManagement([ContextEdit("clear_thinking_20251015", keep)])  # type: ignore[arg-type]
        messages = template_turns(None, turns, lambda thinking, *_: thinking, edits).messages
        assert len([message for message in messages if "reasoning_content" in message]) == num_kept


def _turn(fields: dict[str, Any]) -> MessageParam:
    return msgspec.convert(fields, MessageParam)
