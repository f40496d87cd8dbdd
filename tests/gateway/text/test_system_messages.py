"""System messages in the midst of a conversation stay in place, whatever the chat template takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.text.options import Rendering
from gateway.text.system_messages import without_late_system
from gateway.text.tokenizer import Tokenizer
from tests.gateway.model_folder import CHAT_TEMPLATE, make_model_folder

FITTED = Rendering(fits_system=True)
INSISTS = (
    "{% for message in messages %}{% if message['role'] == 'system' and not loop.first %}"
    "{{ raise_exception('the system message must come first') }}{% endif %}{% endfor %}"
)
CONVERSATION = [
    {"role": "system", "content": "first"},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
    {"role": "system", "content": "late"},
    {"role": "user", "content": "four"},
]


def tokenizer_of(folder: Path, template: str) -> Tokenizer:
    (make_model_folder(folder) / "chat_template.jinja").write_text(template)
    return Tokenizer.from_folder(folder)


def test_a_template_that_takes_system_messages_anywhere_gets_them(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, CHAT_TEMPLATE)
    assert tokenizer.takes_late_system
    assert tokenizer.render_chat(CONVERSATION, (), FITTED) == tokenizer.render_chat(CONVERSATION)


def test_a_template_that_insists_on_one_at_the_beginning_gets_turns_of_the_user(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, INSISTS + CHAT_TEMPLATE)
    assert not tokenizer.takes_late_system
    rendered = tokenizer.render_chat(CONVERSATION, (), FITTED)
    assert rendered.endswith("<|im_start|>user\nthree\n\nlate\n\nfour<|im_end|>\n<|im_start|>assistant\n")
    before = tokenizer.render_chat(CONVERSATION[:4], (), FITTED)
    assert rendered.startswith(before[: before.index("three") + len("three")]), "what came before stays in the cache"


def test_system_messages_at_the_beginning_are_one(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, INSISTS + CHAT_TEMPLATE)
    messages = [{"role": "system", "content": content} for content in ("first", "second", "third")]
    rendered = tokenizer.render_chat([*messages, *CONVERSATION[1:]], (), FITTED)
    assert rendered.startswith(
        "<|im_start|>system\nfirst\n\nsecond\n\nthird<|im_end|>\n<|im_start|>user\none<|im_end|>\n"
    )
    assert rendered.endswith("<|im_start|>user\nthree\n\nlate\n\nfour<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("role", ["tool", "assistant"])
def test_system_messages_beside_other_messages_are_turns_of_their_own(role: str) -> None:
    messages: list[dict[str, Any]] = [
        {"role": role, "content": "x"},
        {"role": "system", "content": "late"},
        {"role": "assistant", "content": "y"},
    ]
    assert [message["role"] for message in without_late_system(messages)] == [role, "user", "assistant"]
