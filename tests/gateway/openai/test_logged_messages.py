"""The request log keeps all that a chat's messages say."""

from __future__ import annotations

from gateway.content.transcript import LoggedMessage
from gateway.openai.chat.wire import ChatMessage
from gateway.openai.shared.logged import logged_messages


def test_reasoning_that_comes_back_is_logged_before_its_answer() -> None:
    message = ChatMessage(role="assistant", content="4", reasoning_content="Two and two.")
    assert list(logged_messages([message])) == [LoggedMessage("assistant", "Two and two.\n4", [])]
