"""The one way of a request: route, prepare, bound, admit, generate, text. Knows neither HTTP nor which backend it talks
to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing

import msgspec

from engine.protocol import Delta, Final, GenerateRequest, SamplingParams, TokenLogprobs, Usage
from gateway.backends.base import Backend, Capabilities
from gateway.backends.pool import Pool
from gateway.domain.errors import BackendFailed, InvalidRequest, Overloaded
from gateway.domain.limits.refusal import Headers
from gateway.domain.limits.work import Part
from gateway.domain.tenancy.principal import Principal
from gateway.limits.limiter import Limiter
from gateway.metering.meter import Meter
from gateway.metering.tag import MeterTag, encode_tag
from gateway.pipeline.bounds import check_at_most, check_ids, check_prompt, completion_bound, too_long
from gateway.pipeline.calling_choice import CallingChoice, calling_choices
from gateway.pipeline.choices import Choice, Piece, Token, prompt_tokens, style_after
from gateway.pipeline.defaults import with_defaults, with_system_prompt
from gateway.pipeline.requests import Conversation, EmbeddingRequest, Prompt, TextRequest
from gateway.pipeline.tokenizing import predicted_tokens, prepared_prompt, tokenized
from gateway.routing.resolve import Resolver, Route
from gateway.text.options import PLAIN, TextStyle
from gateway.text.tokenizer import Tokenizer
from gateway.text.tools.grammar import call_grammar
from gateway.text.tools.tool import ToolUse


class Prepared(msgspec.Struct, frozen=True):
    """A request that was found good: nothing but its tenant's limits and the engine can refuse it any more. tag: of its
    usage, which goes with the request once it is admitted. grammar_field: what the client calls the grammar, which only
    the engine understands. tools: that its completions may call."""

    pool: Pool
    route: Route
    request: GenerateRequest
    tag: MeterTag
    stop: tuple[str, ...] = ()
    grammar_field: str | None = None
    tools: ToolUse | None = None
    style: TextStyle = PLAIN

    @property
    def max_tokens(self) -> int:
        """Of each of its completions."""
        return self.request.sampling.max_tokens


class Admitted(msgspec.Struct, frozen=True):
    """Prepared prompts of one HTTP request that may run now. headers: where the caller's limits stand. close has to be
    called once the request is answered, whatever became of it."""

    prepared: Sequence[Prepared]
    headers: Headers
    close: Callable[[], None]


class PromptTokens(msgspec.Struct, frozen=True):
    """The prompt's own log-probabilities."""

    tokens: list[Token]


Item = list[Piece] | PromptTokens | Usage
AnyChoices = Sequence[Choice | CallingChoice]


class Pipeline:
    """Takes requests of principals to pools. One per gateway process."""

    def __init__(
        self,
        resolver: Resolver,
        pools: Mapping[str, Pool],
        tokenizers: Mapping[str, Tokenizer],
        meter: Meter,
        limiter: Limiter,
        *,
        default_max_tokens: int,
    ) -> None:
        self._resolver = resolver
        self._pools = pools
        self._tokenizers = tokenizers
        self._meter = meter
        self._limiter = limiter
        self._default_max_tokens = default_max_tokens

    def tokenizer(self, prepared: Prepared) -> Tokenizer:
        """The tokenizer of the model that a request goes to."""
        return self._tokenizers[prepared.pool.name]

    async def route(self, principal: Principal, model: str) -> Route:
        """Where all prompts of one HTTP request go, whatever changes meanwhile. Raises ModelNotFound and Overloaded."""
        return await self._resolver.resolve(principal.project_id, model, principal.models)

    async def prepare(self, principal: Principal, route: Route, request: TextRequest) -> Prepared:
        """Raises InvalidRequest and Overloaded; nothing was asked of an engine then."""
        pool, adapter = self._pools[route.base], route.adapter
        if adapter is not None:
            request = with_defaults(request, adapter.defaults)
        tools = request.prompt.tools if isinstance(request.prompt, Conversation) else None
        prompt = await prepared_prompt(pool.any, request)
        capabilities, sampling = pool.any.capabilities, request.sampling
        if tools is not None:
            template = self._tokenizers[pool.name].tools
            grammar = call_grammar(template, tools, sampling.grammar, request.names.grammar)
            sampling = msgspec.structs.replace(sampling, grammar=grammar)
        check_ids("stop_token_ids", sampling.stop_token_ids, capabilities.vocab_size)
        check_ids("allowed_token_ids", sampling.allowed_token_ids, capabilities.vocab_size)
        check_ids("logit_bias", sampling.logit_bias, capabilities.vocab_size)
        check_at_most(request.names.n, request.n, capabilities.max_choices)
        sizes = (await self._limiter.rules(principal, route.model)).sizes
        max_tokens = completion_bound(
            capabilities.max_model_len, sizes, prompt.num_tokens, request, self._default_max_tokens
        )
        tag = self._tag(principal, route, request)
        generate = GenerateRequest(
            request_id=request.request_id,
            prompt_token_ids=prompt.token_ids,
            sampling=msgspec.structs.replace(sampling, max_tokens=max_tokens),
            tenant=principal.project_id,
            adapter=adapter.key if adapter else "",
            n=request.n,
            predicted_token_ids=await predicted_tokens(pool.any, request.prediction, max_tokens),
            weight=request.weight,
        )
        return Prepared(pool, route, generate, tag, request.stop, request.names.grammar, tools, request.style)

    async def prepare_embedding(self, principal: Principal, route: Route, request: EmbeddingRequest) -> Prepared:
        """Raises as `prepare` does."""
        pool, adapter = self._pools[route.base], route.adapter
        prompt = await prepared_prompt(pool.any, request)
        capabilities = pool.any.capabilities
        if prompt.num_tokens > capabilities.max_model_len:
            raise too_long(capabilities.max_model_len, prompt.num_tokens, request.names.prompt)
        sizes = (await self._limiter.rules(principal, route.model)).sizes
        check_prompt(sizes, prompt.num_tokens, request.names.prompt)
        check_at_most("dimensions", request.dimensions or 1, capabilities.embedding_size)
        tag = self._tag(principal, route, request)
        generate = GenerateRequest(
            request_id=request.request_id,
            prompt_token_ids=prompt.token_ids,
            sampling=SamplingParams(max_tokens=0),
            tenant=principal.project_id,
            adapter=adapter.key if adapter else "",
            pooling=request.pooling,
        )
        return Prepared(pool, route, generate, tag)

    async def tokenize(self, route: Route, prompt: Prompt, field: str, *, add_special_tokens: bool = True) -> list[int]:
        """A prompt's tokens, as a request that goes this way would have them. Raises InvalidRequest."""
        if route.adapter is not None:
            prompt = with_system_prompt(prompt, route.adapter.defaults)
        if prompt == "":
            return self._tokenizers[route.base].encode_text(prompt, add_special_tokens=add_special_tokens)
        backend = self._pools[route.base].any
        return (await tokenized(backend, prompt, field, add_special_tokens=add_special_tokens)).token_ids

    @property
    def only_model(self) -> str | None:
        """The base model, where there is but one."""
        return next(iter(self._pools)) if len(self._pools) == 1 else None

    def model_of(self, route: Route) -> tuple[Tokenizer, Capabilities]:
        """Of what a request that goes this way runs on."""
        return self._tokenizers[route.base], self._pools[route.base].any.capabilities

    async def admit(self, principal: Principal, prepared: Sequence[Prepared]) -> Admitted:
        """Reserve what the prompts of one request may use at most; completions may have to be shorter for it.

        Raises LimitReached and Overloaded.
        """
        first = prepared[0]
        parts = tuple(
            Part(each.request.request_id, len(each.request.prompt_token_ids), each.request.n, each.max_tokens)
            for each in prepared
        )
        admission = await self._limiter.admit(
            principal,
            first.tag.model,
            parts,
            service_tier=first.tag.service_tier,
            min_tokens=first.request.sampling.min_tokens,
            capacity=first.pool.any.capabilities.max_in_flight,
        )
        admitted = [_admitted(each, admission.cap, admission.instant_ns) for each in prepared]
        return Admitted(admitted, admission.headers, admission.close)

    async def run(self, prepared: Prepared) -> AsyncGenerator[Item]:
        """Pieces as they come, each choice's last with its finish reason; then exactly one Usage.

        PromptTokens come before all pieces, where they were asked for. Closing it early aborts the request. Raises
        InvalidRequest and Overloaded before the first piece, BackendFailed at any time.
        """
        request, backend, tokenizer = prepared.request, prepared.pool.pick(), self.tokenizer(prepared)
        choices = _choices(prepared, tokenizer)
        waits_for_prompt = request.sampling.num_prompt_logprobs is not None
        pieces: list[Piece] = []
        try:
            async with aclosing(backend.generate(request)) as items:
                async for item in items:
                    if isinstance(item, Final):
                        if pieces := pieces + _end(choices, item):
                            yield pieces
                        yield item.usage
                        return
                    pieces += await _pieces(choices, item, backend)
                    if waits_for_prompt and (prompt := _prompt_logprobs(item)) is not None:
                        waits_for_prompt = False
                        yield PromptTokens(await prompt_tokens(tokenizer, request.prompt_token_ids, prompt))
                    if pieces and not waits_for_prompt:
                        yield pieces
                        pieces = []
        except (InvalidRequest, BackendFailed) as error:
            raise _told(error, prepared) from None

    async def embed(self, prepared: Prepared) -> tuple[bytes, Usage]:
        """The embedding of one prepared text, fp32 little-endian and of unit length. Raises as `run` does."""
        try:
            async with aclosing(prepared.pool.pick().generate(prepared.request)) as items:
                async for item in items:
                    if isinstance(item, Final) and item.embedding is not None:
                        return item.embedding, item.usage
        except (InvalidRequest, BackendFailed) as error:
            raise _told(error, prepared) from None
        raise BackendFailed("The engine gave no embedding.")

    def _tag(self, principal: Principal, route: Route, request: TextRequest | EmbeddingRequest) -> MeterTag:
        """What its usage event needs to know. Raises Overloaded where no more of them can be kept."""
        if not self._meter.has_room:
            raise Overloaded("Usage cannot be recorded at the moment.", retry_after_s=5.0)
        adapter = route.adapter
        return MeterTag(
            organization_id=principal.organization_id,
            project_id=principal.project_id,
            api_key_id=principal.api_key_id,
            endpoint=request.endpoint,
            model=route.model,
            adapter_id=adapter.id if adapter else None,
            adapter_version=adapter.ref.version if adapter else None,
            # The owner's to know; of a version there is but one.
            adapter_digest=adapter.ref.digest if adapter and not adapter.is_shared else None,
            created_at_ns=0,
            stream=request.stream,
            service_tier=request.service_tier,
            journal_id=self._meter.journal_id,
        )


def _admitted(prepared: Prepared, cap: int, instant_ns: int) -> Prepared:
    """With completions of at most cap tokens, and counted in the windows in which they were reserved."""
    request = prepared.request
    sampling = request.sampling
    if sampling.max_tokens > cap:
        sampling = msgspec.structs.replace(sampling, max_tokens=cap)
    meter = encode_tag(msgspec.structs.replace(prepared.tag, created_at_ns=instant_ns))
    return msgspec.structs.replace(prepared, request=msgspec.structs.replace(request, sampling=sampling, meter=meter))


def _choices(prepared: Prepared, tokenizer: Tokenizer) -> AnyChoices:
    request, stop = prepared.request, prepared.stop
    style = style_after(request.prompt_token_ids, tokenizer, prepared.style)
    min_tokens = request.sampling.min_tokens
    if prepared.tools is not None:
        return calling_choices(request.n, tokenizer, prepared.tools, stop, min_tokens=min_tokens, style=style)
    return [Choice(index, tokenizer, stop, min_tokens=min_tokens, style=style) for index in range(request.n)]


async def _pieces(choices: AnyChoices, deltas: list[Delta], backend: Backend) -> list[Piece]:
    pieces = []
    for delta in deltas:
        choice = choices[delta.index]
        piece = choice.push(delta)
        if piece is not None:
            pieces.append(piece)
            if choice.num_kept_tokens is not None:
                await backend.stop_at(delta.request_id, delta.index, choice.num_kept_tokens)
    return pieces


def _prompt_logprobs(deltas: list[Delta]) -> list[TokenLogprobs | None] | None:
    return next((delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs is not None), None)


def _end(choices: AnyChoices, final: Final) -> list[Piece]:
    """The ends of the choices that no delta has ended. Raises BackendFailed when the engine did not complete them."""
    unended = [choice for choice in choices if choice.finish_reason is None]
    if unended and final.finish_reason not in ("stop", "length"):
        raise BackendFailed("The engine ended the request early.")
    return [choice.end(final.finish_reason) for choice in unended]


def _told(error: InvalidRequest | BackendFailed, prepared: Prepared) -> InvalidRequest | BackendFailed:
    """What the client hears of it, with its own name of what was refused: all but the grammar and the adapter was
    checked here. Why a shared adapter cannot be loaded, or fails the engine, is its owner's to know."""
    adapter = prepared.route.adapter
    is_borrowed = adapter is not None and adapter.is_shared
    if isinstance(error, BackendFailed):
        return BackendFailed("The engine failed while it worked on the request.") if is_borrowed else error
    if error.param == "model" and is_borrowed:
        return InvalidRequest("The adapter cannot be loaded.", param=error.param, code=error.code)
    return InvalidRequest(error.message, param=error.param or prepared.grammar_field, code=error.code)
