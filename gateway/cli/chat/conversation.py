"""The messages of a conversation, and the requests that it makes. Pure."""

from __future__ import annotations

from typing import Any

import msgspec


class Conversation(msgspec.Struct):
    """A conversation with a model."""

    model: str
    base: str = ""
    """The base model of the model."""
    system: str | None = None
    options: dict[str, Any] = {}
    """Further fields of every request, by the names of the API."""
    messages: list[dict[str, str]] = []

    def asking(self, question: str) -> dict[str, Any]:
        """Return the body of a request that asks this question next in the conversation."""
        before = [{"role": "system", "content": self.system}] if self.system else []
        messages = [*before, *self.messages, {"role": "user", "content": question}]
        return {"model": self.model, "messages": messages, **self.options}

    def answered(self, question: str, answer: str) -> None:
        """Add a question and its answer to the messages that the next question follows."""
        self.messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    def clear(self) -> None:
        """Forget the questions and answers, but not the system prompt."""
        self.messages = []
