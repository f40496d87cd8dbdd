"""The messages that a chat template gets for messages on the wire."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.openai.chat.messages import template_messages
from gateway.openai.chat.wire import ChatMessage

PARTS = [{"type": "text", "text": "One."}, {"type": "refusal", "refusal": "Two."}]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"content": "Yes."}, "Yes."),
        ({"content": None, "refusal": "No."}, "No."),
        ({"refusal": ""}, ""),
        ({"content": "", "refusal": "No."}, "No."),
        ({"content": "Yes.", "refusal": ""}, "Yes."),
        ({"content": "Yes.", "refusal": "No."}, "Yes.\nNo."),
        ({"content": PARTS, "refusal": "Three."}, "One.\nTwo.\nThree."),
    ],
)
def test_nothing_is_lost_of_what_an_assistant_has_said(fields: dict[str, Any], said: str):
    message = msgspec.convert({"role": "assistant", **fields}, ChatMessage)
    assert template_messages([message]) == [{"role": "assistant", "content": said}]
