"""From what a request says to the tokens that an engine gets: prompts, and what a client predicts. Off the event loop
where it is long. Knows no bound and no field."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from gateway.backends.base import Backend, Message, PreparedPrompt
from gateway.pipeline.requests import Conversation, EmbeddingRequest, Prompt, TextRequest

THREAD_ABOVE_CHARS = 16_384
"""Longer prompts are tokenized in a thread, so that the streams of others go on."""

CHARS_PER_VALUE = 16
"""What each message, field and value of a conversation counts as beside its text: a template goes through them all."""


PREDICTED_PER_TOKEN = 4
"""Tokens of a prediction that may be kept for each one of the completion: much of it may be left out."""


async def prepared_prompt(backend: Backend, request: TextRequest | EmbeddingRequest) -> PreparedPrompt:
    """A request's prompt, of which its client may want the end alone, or the beginning."""
    prompt = await tokenized(
        backend, request.prompt, request.names.prompt, add_special_tokens=request.add_special_tokens
    )
    most = request.max_prompt_tokens
    if most is None or prompt.num_tokens <= most:
        return prompt
    return PreparedPrompt(prompt.token_ids[:most] if request.keeps_first else prompt.token_ids[-most:], most)


async def tokenized(backend: Backend, prompt: Prompt, field: str, *, add_special_tokens: bool) -> PreparedPrompt:
    """Raises InvalidRequest; field: what the client calls the prompt. Conversations say themselves what is added."""
    if isinstance(prompt, Conversation):
        messages, rendering = prompt.messages, prompt.rendering
        tools = prompt.tools.tools if prompt.tools else ()
        if tools or is_long(messages):
            return await asyncio.to_thread(backend.prepare_chat, messages, tools, rendering)
        return backend.prepare_chat(messages, tools, rendering)
    prepare = partial(backend.prepare_text, prompt, field, add_special_tokens=add_special_tokens)
    if isinstance(prompt, str) and len(prompt) > THREAD_ABOVE_CHARS:
        return await asyncio.to_thread(prepare)
    return prepare()


async def predicted_tokens(backend: Backend, prediction: str, max_tokens: int) -> list[int]:
    """A prediction's tokens, as many as can be of use to a completion of max_tokens."""
    if not prediction:
        return []
    prepared = await tokenized(backend, prediction, "prediction", add_special_tokens=False)
    return prepared.token_ids[: min(PREDICTED_PER_TOKEN * max_tokens, backend.capabilities.max_model_len)]


def is_long(messages: Sequence[Message]) -> bool:
    """Whether a conversation is to be rendered in a thread: by all it holds, the calls of tools and names included.
    Looks no further than it takes to know."""
    left = THREAD_ABOVE_CHARS
    to_count: list[Any] = [*messages]
    while to_count and left >= 0:
        value = to_count.pop()
        left -= CHARS_PER_VALUE
        if isinstance(value, str):
            left -= len(value)
        elif isinstance(value, dict):
            left -= sum(map(len, value))
            to_count += value.values()
        elif isinstance(value, list | tuple):
            to_count += value
    return left < 0
