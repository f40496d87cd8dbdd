"""A grammar holds what follows the thinking where client and model let it come, and all of the text elsewhere."""

from __future__ import annotations

import msgspec
import pytest

from engine.protocol import Grammar, Thinking
from gateway.messages.options import conversation_of
from gateway.messages.wire import CreateMessage
from gateway.pipeline.preparation import after_thinking
from gateway.text.tokenizer import Tokenizer
from tests.gateway.text import vocabularies
from tests.gateway.text.tools.templates import PLAIN

GRAMMAR = Grammar("json_object", "")


def tokenizer_without_a_switch() -> tuple[Tokenizer, Thinking]:
    backend = vocabularies.byte_level().backend
    backend.add_tokens(["<think>", "</think>"])
    begin, end = backend.token_to_id("<think>"), backend.token_to_id("</think>")
    assert begin is not None and end is not None
    return Tokenizer(backend, PLAIN + "{# <think> #}"), Thinking(end=((end,),), begin=begin)


@pytest.mark.parametrize(
    ("thinking", "is_held", "thinks"),
    [(None, True, False), ({"type": "disabled"}, True, False), ({"type": "adaptive"}, True, True), (None, False, True)],
)
def test_a_message_without_thinking_is_held_from_its_first_token(
    thinking: dict[str, str] | None, is_held: bool, thinks: bool
) -> None:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "thinking": thinking}
    conversation = conversation_of(msgspec.convert(body, CreateMessage), lambda _role, thinking, _signature: thinking)
    tokenizer, expected = tokenizer_without_a_switch()
    prompt = tokenizer.render_chat(conversation.messages, (), conversation.rendering)
    prompt_ids = tokenizer.encode_text(prompt, add_special_tokens=False)
    grammar = after_thinking(GRAMMAR, tokenizer, prompt_ids, conversation.rendering, is_held=is_held)
    expected = msgspec.structs.replace(expected, may_end=not is_held)
    assert grammar.thinking == (expected if thinks else None)
