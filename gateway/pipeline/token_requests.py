"""Requests for the tokens of a text, and for the text of tokens. No engine has a part in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec

from gateway.pipeline.bounds import check_ids
from gateway.pipeline.context import RequestContext
from gateway.pipeline.defaults import treated_prompt, with_system_prompt
from gateway.pipeline.placing import Placing
from gateway.pipeline.requests import Prompt
from gateway.pipeline.tokenizing import Tokenizing
from gateway.routing.route import Route

T = TypeVar("T")

THREAD_ABOVE_TOKENS = 4096
"""The number of tokens above which decoding is done in a thread, so that streams are not delayed."""


class Tokenized(msgspec.Struct, frozen=True):
    """The tokens of a prompt."""

    token_ids: list[int]
    max_model_len: int
    """The longest prompt and completion together, in tokens."""
    strings: list[str] | None
    """Each token as the vocabulary spells it (a space may be another character there); None unless asked for."""


class TokenRequests:
    """The service that tokenizes and detokenizes for clients. A gateway process has one."""

    def __init__(self, placing: Placing, tokenizing: Tokenizing) -> None:
        self._placing = placing
        self._tokenizing = tokenizing

    async def tokenize(
        self,
        context: RequestContext,
        prompt: Prompt,
        field: str,
        *,
        add_special_tokens: bool = True,
        with_strings: bool = False,
    ) -> Tokenized:
        """Return a prompt's tokens, as a completion of the same model would have them.

        The system prompt of an adapter that another project shares is left out. field: the client's name of the prompt.
        with_strings: True: the text of each token is returned, too.

        Raises ModelNotFound: when the caller may use no such model.
        Raises InvalidRequest: when the prompt cannot be tokenized.
        """
        route, pool = await self._placing.route(context)
        prompt = _completed(route, prompt, with_shared=False)
        tokenizer = pool.tokenizer
        if prompt == "":
            token_ids = tokenizer.encode_text("", add_special_tokens=add_special_tokens)
        else:
            found = await self._tokenizing.tokenized(
                context.principal.project_id, pool, prompt, field, add_special_tokens=add_special_tokens
            )
            token_ids = found.token_ids
        strings = None
        if with_strings:
            vocabulary = tokenizer.backend.id_to_token
            strings = await _worked_out(lambda ids: [vocabulary(token_id) or "" for token_id in ids], token_ids)
        return Tokenized(token_ids, pool.capabilities.max_model_len, strings)

    async def count(self, context: RequestContext, prompt: Prompt, field: str) -> int:
        """Return the number of tokens that a completion of the same model would be billed for a prompt.

        The system prompt of an adapter that another project shares is included.
        field: the client's name of the prompt.

        Raises as `tokenize`.
        """
        num_tokens, _ = await self.count_and_limit(context, prompt, field)
        return num_tokens

    async def count_and_limit(self, context: RequestContext, prompt: Prompt, field: str) -> tuple[int, int]:
        """Return the number of a prompt's billed tokens, and the most tokens of prompt and completion together.

        Raises as `tokenize`.
        """
        route, pool = await self._placing.route(context)
        assert pool.tokenizer  # else an upper bound is all that is known here
        found = await self._tokenizing.tokenized(
            context.principal.project_id,
            pool,
            _completed(route, prompt, with_shared=True),
            field,
            add_special_tokens=True,
        )
        return found.num_tokens, pool.capabilities.max_model_len

    async def detokenize(self, context: RequestContext, token_ids: list[int], field: str) -> str:
        """Return the text of token ids, special tokens included; `field` is the client's name of the ids.

        Raises ModelNotFound: when the caller may use no such model.
        Raises InvalidRequest: when an id is not of the model's vocabulary.
        """
        _, pool = await self._placing.route(context)
        check_ids(field, token_ids, pool.capabilities.vocab_size)
        return await _worked_out(partial(pool.tokenizer.decode, with_special=True), token_ids)


def _completed(route: Route, prompt: Prompt, *, with_shared: bool) -> Prompt:
    """Return a prompt with the system prompts that its arm and its adapter add.

    with_shared: True: an adapter of another project adds its own as well.
    """
    if route.treatment is not None:
        prompt = treated_prompt(prompt, route.treatment)
    if route.adapter is not None and (with_shared or not route.adapter.is_shared):
        prompt = with_system_prompt(prompt, route.adapter.defaults)
    return prompt


async def _worked_out(work: Callable[[list[int]], T], token_ids: list[int]) -> T:
    if len(token_ids) > THREAD_ABOVE_TOKENS:
        return await asyncio.to_thread(work, token_ids)
    return work(token_ids)
