"""What is logged of requests' content, in OpenAI's shapes: what was asked, and a reply's items as they pass by."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing

from gateway.content.request_log import RequestContents
from gateway.content.transcript import Heard, LoggedCall, LoggedMessage
from gateway.domain.tenancy.principal import Principal
from gateway.http.envelope import Call
from gateway.openai.chat.wire import ChatMessage
from gateway.pipeline.pipeline import Item
from gateway.text.tokenizer import Tokenizer


def listen(
    contents: RequestContents, call: Call, caller: Principal, endpoint: str, asked: Iterable[LoggedMessage]
) -> Heard:
    """Collects what this request gets. It is kept when the reply is over, however it ended; nothing waits for that.
    To be called once it is admitted."""
    heard, end = Heard(call.request_id, endpoint, call.model, asked), call.on_end

    def ended() -> None:
        if end is not None:
            end()
        contents.keep(caller.project_id, heard)

    call.on_end = ended
    return heard


async def overheard(items: AsyncGenerator[Item], heard: Heard, first: int = 0) -> AsyncGenerator[Item]:
    """The same items. first: the number, within the whole reply, of the first choice of these; of `best_of` every
    candidate is one."""
    async with aclosing(items):
        async for item in items:
            if isinstance(item, list):
                for piece in item:
                    index = first + piece.index
                    if piece.text:
                        heard.add(index, piece.text)
                    for new in piece.calls:
                        heard.add_call(index, new.name, new.arguments)
                    if piece.finish_reason is not None:
                        heard.end(index, piece.finish_reason)
            yield item


def messages_said(messages: Iterable[ChatMessage]) -> Iterator[LoggedMessage]:
    """Text and calls; of other modalities there are none."""
    for message in messages:
        parts = message.content if isinstance(message.content, list) else []
        texts = [message.content] if isinstance(message.content, str) else []
        texts += [part.text or part.refusal or "" for part in parts]
        calls = [call.function for call in message.tool_calls or () if call.function is not None]
        if message.function_call is not None:
            calls.append(message.function_call)
        texts += [message.refusal] if message.refusal else []
        yield LoggedMessage(message.role, "\n".join(texts), [LoggedCall(call.name, call.arguments) for call in calls])


def prompts_said(given: Sequence[str | list[int]], tokenizer: Tokenizer) -> Iterator[LoggedMessage]:
    """Token ids as their text, in which there may be something to redact."""
    for prompt in given:
        yield LoggedMessage(None, prompt if isinstance(prompt, str) else tokenizer.decode(prompt))
