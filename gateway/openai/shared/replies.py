"""What the replies of chat and text completions have in common."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import msgspec
from litestar.response.base import ASGIResponse

from engine.protocol import Usage
from gateway.pipeline.choices import Token
from gateway.pipeline.pipeline import Item, Prepared, PromptTokens
from gateway.text.tools.parser import CallDelta


def reply_id(prefix: str, request_id: str) -> str:
    """OpenAI's id of a reply, with the random part of our request id: one leads to the other."""
    return f"{prefix}-{request_id.removeprefix('req_')}"


def row_id(request_id: str, index: int) -> str:
    """The id of the ledger's row of one prompt; the first one has the id that the client sees."""
    return request_id if index == 0 else f"{request_id}.{index}"


def json_response(body: msgspec.Struct, *, status: int = 200) -> ASGIResponse:
    return ASGIResponse(body=msgspec.json.encode(body), media_type="application/json", status_code=status)


def fingerprint(prepared: Prepared) -> str | None:
    """`system_fingerprint`: stands for all that an answer with a seed depends on beside its request. Of the adapter it
    is the version, whose content only its owner may compare."""
    backend, adapter = prepared.pool.any.capabilities.fingerprint, prepared.route.adapter
    if not backend:
        return None
    whole = backend if adapter is None else f"{backend}:{adapter.id}@{adapter.ref.version}"
    return f"fp_{hashlib.sha256(whole.encode()).hexdigest()[:10]}"


class Answer(msgspec.Struct):
    """One whole choice. calls: their deltas, in order. token_ids: where they were asked for."""

    text: str = ""
    tokens: list[Token] = []
    finish_reason: str = ""
    calls: list[CallDelta] = []
    token_ids: list[int] = []


class Collected(msgspec.Struct, frozen=True):
    """All choices of one prompt. prompt_tokens: where log-probabilities of the prompt were asked for."""

    answers: list[Answer]
    prompt_tokens: list[Token]
    usage: Usage


class Collector:
    """Puts the items of one request together."""

    def __init__(self, num_choices: int) -> None:
        self._answers = [Answer() for _ in range(num_choices)]
        self._prompt_tokens: list[Token] = []

    def add(self, item: Item) -> Collected | None:
        """All of it, with the last item."""
        if isinstance(item, Usage):
            return Collected(self._answers, self._prompt_tokens, item)
        if isinstance(item, PromptTokens):
            self._prompt_tokens = item.tokens
            return None
        for piece in item:
            answer = self._answers[piece.index]
            answer.text += piece.text
            answer.tokens += piece.tokens
            answer.calls += piece.calls
            answer.token_ids += piece.token_ids
            answer.finish_reason = piece.finish_reason or ""
        return None


async def collect(items: AsyncGenerator[Item], num_choices: int) -> Collected:
    """Read a request to its end."""
    collector = Collector(num_choices)
    async with aclosing(items):
        async for item in items:
            if (collected := collector.add(item)) is not None:
                return collected
    raise AssertionError("the pipeline ended without a usage")


async def passed_on(
    items: AsyncGenerator[Item], num_choices: int, take: Callable[[Collected], Awaitable[None]]
) -> AsyncGenerator[Item]:
    """The same items; before the last one goes on, `take` has had all of them together."""
    collector = Collector(num_choices)
    async with aclosing(items):
        async for item in items:
            if (collected := collector.add(item)) is not None:
                await take(collected)
            yield item
