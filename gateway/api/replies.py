"""What the replies of chat and text completions have in common."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from litestar.response.base import ASGIResponse

from engine.protocol import Usage
from gateway.choices import Token
from gateway.pipeline import Item, PromptTokens


def reply_id(prefix: str, request_id: str) -> str:
    """OpenAI's id of a reply, with the random part of our request id: one leads to the other."""
    return f"{prefix}-{request_id.removeprefix('req_')}"


def row_id(request_id: str, index: int) -> str:
    """The id of the ledger's row of one prompt; the first one has the id that the client sees."""
    return request_id if index == 0 else f"{request_id}.{index}"


def json_response(body: msgspec.Struct, *, status: int = 200) -> ASGIResponse:
    return ASGIResponse(body=msgspec.json.encode(body), media_type="application/json", status_code=status)


class Answer(msgspec.Struct):
    """One whole choice."""

    text: str = ""
    tokens: list[Token] = []
    finish_reason: str = ""


class Collected(msgspec.Struct, frozen=True):
    """All choices of one prompt. prompt_tokens: where log-probabilities of the prompt were asked for."""

    answers: list[Answer]
    prompt_tokens: list[Token]
    usage: Usage


async def collect(items: AsyncGenerator[Item], num_choices: int) -> Collected:
    """Read a request to its end."""
    answers = [Answer() for _ in range(num_choices)]
    prompt_tokens: list[Token] = []
    async with aclosing(items):
        async for item in items:
            if isinstance(item, Usage):
                return Collected(answers, prompt_tokens, item)
            if isinstance(item, PromptTokens):
                prompt_tokens = item.tokens
                continue
            for piece in item:
                answer = answers[piece.index]
                answer.text += piece.text
                answer.tokens += piece.tokens
                answer.finish_reason = piece.finish_reason or ""
    raise AssertionError("the pipeline ended without a usage")
