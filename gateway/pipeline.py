"""The one way of a request: route, prepare, bound, generate, text. Knows neither HTTP nor which backend it talks to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import msgspec

from engine.protocol import Final, FinishReason, GenerateRequest, SamplingParams, Usage
from gateway.backends.base import Message, PreparedPrompt
from gateway.backends.pool import Pool
from gateway.errors import BackendFailed, InvalidRequest, Overloaded
from gateway.metering.meter import Meter
from gateway.metering.tag import MeterTag, encode_tag
from gateway.principal import Principal
from gateway.routing.resolve import Resolver, Route
from gateway.text.detokenizer import Detokenizer
from gateway.text.tokenizer import Tokenizer

THREAD_ABOVE_CHARS = 16_384
"""Longer prompts are tokenized in a thread, so that the streams of others go on."""


class Conversation(msgspec.Struct, frozen=True):
    """A prompt that the model's chat template renders."""

    messages: list[Message]


class TextRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One completion that a client asks for. max_tokens None: as many as usual; max_tokens_field: what the client calls
    it; stop: strings that end the text."""

    request_id: str
    endpoint: str
    model: str
    prompt: Conversation | str | list[int]
    stream: bool
    max_tokens: int | None = None
    max_tokens_field: str = "max_tokens"
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    @property
    def prompt_field(self) -> str:
        """What the client calls the prompt."""
        return "messages" if isinstance(self.prompt, Conversation) else "prompt"


class Prepared(msgspec.Struct, frozen=True):
    """A request that was found good: nothing but the engine can refuse it any more."""

    pool: Pool
    request: GenerateRequest
    stop: tuple[str, ...]


class Completion(msgspec.Struct, frozen=True):
    """The end of one completion."""

    finish_reason: FinishReason
    usage: Usage


class Pipeline:
    """Takes requests of principals to pools. One per gateway process."""

    def __init__(
        self,
        resolver: Resolver,
        pools: Mapping[str, Pool],
        tokenizers: Mapping[str, Tokenizer],
        meter: Meter,
        *,
        default_max_tokens: int,
    ) -> None:
        self._resolver = resolver
        self._pools = pools
        self._tokenizers = tokenizers
        self._meter = meter
        self._default_max_tokens = default_max_tokens

    async def prepare(self, principal: Principal, request: TextRequest) -> Prepared:
        """Raises InvalidRequest, ModelNotFound and Overloaded; nothing was asked of an engine then."""
        route = await self._resolver.resolve(principal.project_id, request.model)
        pool = self._pools[route.base]
        prompt = await _tokenize(pool, request)
        capabilities = pool.any.capabilities
        _check_stop_ids(capabilities.vocab_size, request)
        max_tokens = self._bound(capabilities.max_model_len, prompt.num_tokens, request)
        if not self._meter.has_room:
            raise Overloaded("Usage cannot be recorded at the moment.", retry_after_s=5.0)
        generate = GenerateRequest(
            request_id=request.request_id,
            prompt_token_ids=prompt.token_ids,
            sampling=SamplingParams(
                max_tokens=max_tokens,
                temperature=request.temperature,
                top_p=request.top_p,
                top_k=request.top_k,
                seed=request.seed,
                min_tokens=request.min_tokens,
                stop_token_ids=request.stop_token_ids,
                ignore_eos=request.ignore_eos,
            ),
            tenant=principal.project_id,
            adapter=route.adapter.digest if route.adapter else "",
            meter=encode_tag(_tag(principal, route, request)),
        )
        return Prepared(pool, generate, request.stop)

    async def run(self, prepared: Prepared) -> AsyncGenerator[str | Completion]:
        """Text as it comes, then exactly one Completion. Closing it early aborts the request.

        Raises Overloaded before the first text, BackendFailed at any time.
        """
        request, backend = prepared.request, prepared.pool.pick()
        tokenizer = self._tokenizers[prepared.pool.name]
        detokenizer = Detokenizer(tokenizer, prepared.stop, min_tokens=request.sampling.min_tokens)
        async with aclosing(backend.generate(request)) as items:
            async for item in items:
                if isinstance(item, Final):
                    rest = detokenizer.finish()
                    if rest.text:
                        yield rest.text
                    yield _completion(item, stopped=rest.finished)
                    return
                was_finished = detokenizer.finished
                delta = detokenizer.push(item.token_ids)
                if delta.finished and not was_finished:
                    await backend.stop_at(request.request_id, delta.num_kept_tokens)
                if delta.text:
                    yield delta.text

    def _bound(self, context: int, num_prompt_tokens: int, request: TextRequest) -> int:
        """The most tokens to generate, such that prompt and completion fit the context."""
        left = context - num_prompt_tokens
        if left < 1 or (request.max_tokens or 0) > left:
            asked = f" and asks for {request.max_tokens} more in the completion" if request.max_tokens else ""
            raise InvalidRequest(
                f"This model's maximum context length is {context} tokens. However, your request has "
                f"{num_prompt_tokens} tokens in the {request.prompt_field}{asked}.",
                param=request.prompt_field if left < 1 else request.max_tokens_field,
                code="context_length_exceeded",
            )
        max_tokens = request.max_tokens or min(max(self._default_max_tokens, request.min_tokens), left)
        if request.min_tokens > max_tokens:
            raise InvalidRequest(
                f"'min_tokens' must be at most {max_tokens}, the most tokens this request may generate.",
                param="min_tokens",
            )
        return max_tokens


def _completion(final: Final, *, stopped: bool) -> Completion:
    """stopped: a stop string ended the text, whatever the engine was about to do."""
    reason = "stop" if stopped else final.finish_reason
    if reason not in ("stop", "length"):
        raise BackendFailed("The engine ended the request early.")
    return Completion(reason, final.usage)


def _check_stop_ids(vocab_size: int, request: TextRequest) -> None:
    for index, token_id in enumerate(request.stop_token_ids):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"Invalid 'stop_token_ids[{index}]': token ids must be in 0..{vocab_size - 1}.",
                param="stop_token_ids",
                code="invalid_value",
            )


async def _tokenize(pool: Pool, request: TextRequest) -> PreparedPrompt:
    backend, prompt = pool.any, request.prompt
    if isinstance(prompt, Conversation):
        messages = prompt.messages
        if sum(len(message["content"]) for message in messages) > THREAD_ABOVE_CHARS:
            return await asyncio.to_thread(backend.prepare_chat, messages)
        return backend.prepare_chat(messages)
    if isinstance(prompt, str) and len(prompt) > THREAD_ABOVE_CHARS:
        return await asyncio.to_thread(backend.prepare_text, prompt)
    return backend.prepare_text(prompt)


def _tag(principal: Principal, route: Route, request: TextRequest) -> MeterTag:
    adapter = route.adapter
    return MeterTag(
        organization_id=principal.organization_id,
        project_id=principal.project_id,
        api_key_id=principal.api_key_id,
        endpoint=request.endpoint,
        model=route.model,
        adapter_id=adapter.id if adapter else None,
        adapter_version=adapter.version if adapter else None,
        adapter_digest=adapter.digest if adapter else None,
        created_at_ns=time.time_ns(),
        stream=request.stream,
    )
