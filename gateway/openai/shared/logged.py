"""The messages of a request as the request log keeps them, from the shapes of chat completions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gateway.content.transcript import LoggedCall, LoggedMessage
from gateway.openai.chat.wire import ChatMessage


def logged_messages(messages: Iterable[ChatMessage]) -> Iterator[LoggedMessage]:
    """Yield the reasoning, the text and the calls of each message; other modalities are refused before."""
    for message in messages:
        parts = message.content if isinstance(message.content, list) else []
        texts = [message.reasoning_content] if message.reasoning_content else []
        texts += [message.content] if isinstance(message.content, str) else []
        texts += [part.text or part.refusal or "" for part in parts]
        calls = [call.function for call in message.tool_calls or () if call.function is not None]
        if message.function_call is not None:
            calls.append(message.function_call)
        texts += [message.refusal] if message.refusal else []
        yield LoggedMessage(message.role, "\n".join(texts), [LoggedCall(call.name, call.arguments) for call in calls])
