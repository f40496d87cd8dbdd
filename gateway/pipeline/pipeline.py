"""The one way to run a request, for HTTP, batches and whatever else asks: route, prepare, admit, log, run, close.

Knows neither HTTP nor the names of an API's fields, nor which kind of backend answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec
from prometheus_client import Counter

from gateway.backends.pool import Pool, PoolRevision
from gateway.content.request_log import RequestContents
from gateway.content.transcript import LoggedMessage, Transcript
from gateway.domain.billing.book import SHADOW_TIER
from gateway.domain.errors import GatewayError, InvalidRequest, ModelNotFound
from gateway.domain.experiments.definition import SHADOW_ARM
from gateway.domain.experiments.exposure import Exposure
from gateway.domain.experiments.feedback.vote_ids import signed_id
from gateway.domain.experiments.segment_values import Origin
from gateway.domain.experiments.shadowing import Outcome
from gateway.domain.limits.work import Part
from gateway.domain.routing.retry_budget import RetryBudget
from gateway.domain.tenancy.principal import Principal
from gateway.experiments.notes import Notes
from gateway.limits.limiter import Limiter
from gateway.metering.meter import Meter
from gateway.metering.tag import encode_tag
from gateway.pipeline.bounds import check_ids, check_logprobs, check_numbers, check_total, num_logprob_values
from gateway.pipeline.context import RequestContext
from gateway.pipeline.defaults import treated_prompt, with_system_prompt
from gateway.pipeline.preparation import Preparation
from gateway.pipeline.requests import EmbeddingBounds, EmbeddingRequest, Prompt, TextRequest
from gateway.pipeline.routed import RoutedRequests
from gateway.pipeline.run import Prepared, Run
from gateway.pipeline.shadows import SPARE_SHARE, Shadow, Shadows
from gateway.pipeline.tokenizing import Tokenizing
from gateway.routing.experiments import RunningExperiment
from gateway.routing.planner import Planner
from gateway.routing.policies import RoutedPolicy
from gateway.routing.resolve import Found, Resolver
from gateway.routing.route import Route
from gateway.support.pace import Pace
from gateway.text.options import PLAIN

T = TypeVar("T")

MISSES_PER_S, MISSES_BURST = 10.0, 300.0
"""Requests of one project for models that it has not; each costs a query."""

THREAD_ABOVE_TOKENS = 4096
"""More tokens are turned into text in a thread, so that the streams of others go on."""


class Tokenized(msgspec.Struct, frozen=True):
    """The tokens of a prompt."""

    token_ids: list[int]
    max_model_len: int
    """The longest prompt and completion together, in tokens."""
    strings: list[str] | None
    """Each token as the vocabulary has it, where that was asked for: a space may be another character there."""


class PlacedShadow(msgspec.Struct, frozen=True):
    """Where the copy of a request goes."""

    route: Route | None
    """None where the target is gone."""
    ended: Callable[[Outcome], None]
    """Told what became of the copy."""
    exposure: Exposure | None = None
    """The shadow arm of an experiment that asks for the copy."""
    payer: Principal | None = None
    """The one who is charged for the copy; None: the caller."""


class Placed(msgspec.Struct, frozen=True):
    """Where all prompts of one request go."""

    route: Route
    pool: PoolRevision
    exposure: Exposure | None = None
    """The arm of an experiment that the request got, where its model string names one."""
    project_key: bytes = b""
    """The secret of the project's experiments, with an exposure."""
    shadow: PlacedShadow | None = None
    """Where a copy of the request goes as well."""


class Pipeline:
    """Takes requests of principals to pools. One per gateway process."""

    def __init__(
        self,
        resolver: Resolver,
        pools: Mapping[str, Pool],
        meter: Meter,
        limiter: Limiter,
        contents: RequestContents,
        notes: Notes,
        planner: Planner,
        shadow_outcomes: Counter,
        *,
        default_max_tokens: int,
        max_shadows: int,
    ) -> None:
        """shadow_outcomes: counts copies of requests by what became of them. max_shadows: the most that run at once."""
        self._resolver = resolver
        self._routed = RoutedRequests(planner, meter)
        self._pools = pools
        self._limiter = limiter
        self._contents = contents
        self._notes = notes
        self._meter = meter
        self._budget = RetryBudget()
        self._misses = Pace(MISSES_PER_S, MISSES_BURST, what="models that it has not")
        self._shadow_budget = RetryBudget()  # retries of copies take none from requests
        self.shadows = Shadows(self.admit_shadow, self._has_room, shadow_outcomes, max_running=max_shadows)
        """Copies of requests, to be started and stopped with the pipeline."""
        self._tokenizing = Tokenizing()
        self._preparation = Preparation(meter, limiter, self._tokenizing, default_max_tokens=default_max_tokens)

    async def complete(self, context: RequestContext, asked: Sequence[TextRequest]) -> Run:
        """Admit completions of one prompt or several, which run when the Run is read.

        Raises ModelNotFound: when the caller may use no such model.
        Raises InvalidRequest: when a field cannot be served, by the client's name of the field.
        Raises LimitReached: when a limit of the caller has not enough left.
        Raises Overloaded: when the database or the engine cannot be asked.
        """
        found = await self._find(context)
        if isinstance(found, RoutedPolicy):
            return await self._routed.complete(context, found, asked, partial(self._complete_at, context, asked))
        return await self._complete_at(context, asked, found)

    async def _complete_at(
        self, context: RequestContext, asked: Sequence[TextRequest], found: Route | RunningExperiment, attempt: int = 0
    ) -> Run:
        """Admit completions at one target. attempt: the number of their first attempt."""
        placed = self._placed(context, found, asked[0].service_tier)
        try:
            run = await self._completed(context, placed, asked, attempt)
        except GatewayError as error:
            self._refused(context, placed.exposure, asked[0].service_tier, error)
            raise
        if placed.shadow is not None:
            run.close = self.shadows.after(run.close, _shadow(context, placed.shadow, asked, run))
        return run

    async def _completed(
        self, context: RequestContext, placed: Placed, asked: Sequence[TextRequest], attempt: int
    ) -> Run:
        prepared, num_values = [], 0
        for index, each in enumerate(asked):
            row_id = _row_id(context.request_id, index)
            good = await self._preparation.completion(context, placed.route, placed.pool, each, row_id, placed.exposure)
            num_values += num_logprob_values(good.generation.request)
            check_logprobs(num_values, each.names.logprobs)
            prepared.append(_numbered(good, attempt) if attempt else good)
            if len(asked) > 1:
                await asyncio.sleep(0)  # the streams of others go on while many prompts are tokenized
            context.check()
        return await self._admitted(context, placed, prepared, [each.prompt for each in asked])

    async def admit_shadow(self, shadow: Shadow) -> Run:
        """Admit the copy of a request. Of the payer's limits those of cost alone count it. Raises as `complete`."""
        context, route = shadow.own_context, shadow.route
        if route is None:
            raise ModelNotFound(context.model or "")
        pool = self._pool(route, route.id)
        prepared = [
            await self._preparation.completion(
                context, route, pool, _unseen(each), _row_id(context.request_id, index), shadow.exposure
            )
            for index, each in enumerate(shadow.asked)
        ]
        admission = await self._limiter.admit_shadow(
            context.principal,
            route.model,
            tuple(_part(each) for each in prepared),
            service_tier=SHADOW_TIER,
            min_tokens=prepared[0].generation.request.sampling.min_tokens,
        )
        admitted = [_within(each, admission.cap, admission.instant_ns) for each in prepared]
        return Run(context, pool, self._shadow_budget, route.adapter, admitted, (), admission.close, None)

    def _has_room(self, route: Route) -> bool:
        """Tell whether the pool of a route has room to spare; one that is gone refuses by itself."""
        pool = self._pools.get(route.base)
        return pool is None or pool.serving.has_spare_room(SPARE_SHARE)

    async def embed(self, context: RequestContext, asked: Sequence[EmbeddingRequest], bounds: EmbeddingBounds) -> Run:
        """Admit embeddings of one text or several, which run when the Run is read. Raises as `complete` does."""
        placed = await self._place(context, asked[0].service_tier)
        try:
            return await self._embedded(context, placed, asked, bounds)
        except GatewayError as error:
            self._refused(context, placed.exposure, asked[0].service_tier, error)
            raise

    async def _embedded(
        self, context: RequestContext, placed: Placed, asked: Sequence[EmbeddingRequest], bounds: EmbeddingBounds
    ) -> Run:
        route, pool = placed.route, placed.pool
        check_numbers(asked, pool.capabilities.embedding_size, bounds)
        prepared, num_tokens = [], 0
        for index, each in enumerate(asked):
            row_id = _row_id(context.request_id, index)
            prepared.append(await self._preparation.embedding(context, route, pool, each, row_id, placed.exposure))
            num_tokens += prepared[-1].generation.prompt_tokens
            check_total(num_tokens, bounds, each.names.prompt)
            await asyncio.sleep(0)  # the streams of others go on while thousands of texts are tokenized
            context.check()
        return await self._admitted(context, placed, prepared, [each.prompt for each in asked])

    async def tokenize(
        self,
        context: RequestContext,
        prompt: Prompt,
        field: str,
        *,
        add_special_tokens: bool = True,
        with_strings: bool = False,
    ) -> Tokenized:
        """Return a prompt's tokens, as a completion of the same model would have them, but without the system prompt of
        an adapter that another project shares; `field` is the client's name of the prompt.

        Raises ModelNotFound: when the caller may use no such model.
        Raises InvalidRequest: when the prompt cannot be tokenized.
        """
        route, pool = await self._route(context)
        if route.treatment is not None:
            prompt = treated_prompt(prompt, route.treatment)
        if route.adapter is not None and not route.adapter.is_shared:
            prompt = with_system_prompt(prompt, route.adapter.defaults)
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

    async def detokenize(self, context: RequestContext, token_ids: list[int], field: str) -> str:
        """Return the text of token ids, special tokens included; `field` is the client's name of the ids.

        Raises ModelNotFound: when the caller may use no such model.
        Raises InvalidRequest: when an id is not of the model's vocabulary.
        """
        _, pool = await self._route(context)
        check_ids(field, token_ids, pool.capabilities.vocab_size)
        return await _worked_out(partial(pool.tokenizer.decode, with_special=True), token_ids)

    async def _place(self, context: RequestContext, service_tier: str) -> Placed:
        """Return where all prompts of a request go that is not tried elsewhere."""
        found = await self._find(context)
        if isinstance(found, RoutedPolicy):
            found = await self._routed.first_target(context, found)
        return self._placed(context, found, service_tier)

    async def _find(self, context: RequestContext) -> Found:
        """Return what the model string of a request stands for."""
        return await self._looked_up(context.principal, self._resolver.find, self._model(context))

    def _placed(self, context: RequestContext, found: Route | RunningExperiment, service_tier: str) -> Placed:
        """Return where all prompts of a request go, whatever changes meanwhile: in an experiment, to one arm."""
        if isinstance(found, Route):
            return Placed(found, self._pool(found, found.id))
        exposure = found.expose(context.unit, forced_arm=context.forced_arm, is_off=context.is_off)
        context.exposed(exposure)
        self._notes.exposed(exposure)
        route = found.arms[exposure.arm].route
        try:
            if route is None:
                raise ModelNotFound(found.model)  # never another arm in silence
            shadow = self._shadow_of(context, found, exposure)
            return Placed(route, self._pool(route, found.model), exposure, found.project_key, shadow)
        except ModelNotFound as error:
            self._refused(context, exposure, service_tier, error)
            raise

    def _shadow_of(
        self, context: RequestContext, experiment: RunningExperiment, exposure: Exposure
    ) -> PlacedShadow | None:
        """Return where the copy goes that an experiment wants of a request, if any: at the caller's expense."""
        arm = experiment.shadow_of(context.request_id, exposure, context.principal.models)
        if arm is None:
            return None
        copied = Exposure(experiment.id, experiment.name, experiment.version, SHADOW_ARM, arm.name, 0, "forced")
        return PlacedShadow(arm.route, partial(self._notes.shadowed, experiment.id), copied)

    def _refused(
        self, context: RequestContext, exposure: Exposure | None, service_tier: str, error: GatewayError
    ) -> None:
        """Note that a request of an experiment was refused, for whatever reason: arms may differ in that."""
        if exposure is not None:
            key, journal_id = context.principal.api_key_id, self._meter.journal_id
            origin = Origin(key, context.endpoint, context.stream, service_tier, journal_id)
            self._notes.refused(exposure, context.principal.project_id, context.request_id, error, origin)

    async def _route(self, context: RequestContext) -> tuple[Route, PoolRevision]:
        """Return the route of a request that exposes no unit: the control's, where its model is an experiment."""
        model = self._model(context)
        route = await self._looked_up(context.principal, self._resolver.resolve, model)
        return route, self._pool(route, model)

    async def _looked_up(
        self, principal: Principal, look_up: Callable[[Principal, str], Awaitable[T]], model: str
    ) -> T:
        """Return what a model string stands for. Raises what look_up raises, and LimitReached for a project that has
        asked for too many models that it has not."""
        self._misses.take(principal.project_id, 0)
        try:
            return await look_up(principal, model)
        except ModelNotFound:
            self._misses.charge(principal.project_id, 1)
            raise

    def _model(self, context: RequestContext) -> str:
        model = context.model or self._only_model(context.principal)
        if model is None:
            raise InvalidRequest(
                "Missing required parameter: 'model'.", param="model", code="missing_required_parameter"
            )
        return model

    def _pool(self, route: Route, model: str) -> PoolRevision:
        pool = self._pools.get(route.base)
        if pool is None:
            raise ModelNotFound(model)  # removed just now
        return pool.serving

    def _only_model(self, principal: Principal) -> str | None:
        """Return the base model, where the caller may use but one: requests that need not name a model go without."""
        visible = self._resolver.bases.visible(principal.project_id, principal.organization_id)
        return next(iter(visible)) if len(visible) == 1 else None

    async def _admitted(
        self,
        context: RequestContext,
        placed: Placed,
        prepared: Sequence[Prepared],
        asked: Sequence[Prompt],
    ) -> Run:
        """Reserve what the prompts of one request may use at most; completions may have to be shorter for it."""
        route, pool, first, principal = placed.route, placed.pool, prepared[0], context.principal
        parts = tuple(_part(each) for each in prepared)
        admission = await self._limiter.admit(
            principal,
            route.model,
            parts,
            service_tier=first.tag.service_tier,
            min_tokens=first.generation.request.sampling.min_tokens,
            capacity=pool.max_in_flight,
        )
        admitted = [_within(each, admission.cap, admission.instant_ns) for each in prepared]
        transcript, close = None, admission.close
        if principal.log_content_days:
            said = context.said if context.said is not None else _prompts_said(asked, pool)
            transcript = Transcript(context.request_id, context.endpoint, context.model or "", said)
            close = self._logged(principal.project_id, transcript, admission.close)
        run = Run(context, pool, self._budget, route.adapter, admitted, admission.headers, close, transcript)
        run.give_back = admission.close
        if placed.exposure is not None:
            run.vote_id = signed_id(placed.project_key, context.request_id)
            run.on_unanswered = partial(self._refused, context, placed.exposure, first.tag.service_tier)
        return run

    def _logged(self, project_id: str, transcript: Transcript, close: Callable[[], None]) -> Callable[[], None]:
        """Return `close` such that, the first time, it has the transcript written as well; nothing waits for that."""
        is_kept = False

        def close_and_log() -> None:
            nonlocal is_kept
            close()
            if not is_kept:
                is_kept = True
                self._contents.keep(project_id, transcript)

        return close_and_log


def _row_id(request_id: str, index: int) -> str:
    """Return the id of one prompt's row in the ledger; the first row has the id that the client sees."""
    return request_id if index == 0 else f"{request_id}.{index}"


def _numbered(prepared: Prepared, attempt: int) -> Prepared:
    """Return the prompt with the number of its first attempt."""
    request = msgspec.structs.replace(prepared.generation.request, attempt=attempt)
    return msgspec.structs.replace(prepared, generation=msgspec.structs.replace(prepared.generation, request=request))


def _shadow(context: RequestContext, placed: PlacedShadow, asked: Sequence[TextRequest], run: Run) -> Shadow:
    num_tokens, payer = run.num_prompt_tokens, placed.payer or context.principal
    return Shadow(context, asked, num_tokens, placed.route, payer, placed.ended, placed.exposure)


def _unseen(request: TextRequest) -> TextRequest:
    """Return the copy of a request: without what would only be shown."""
    sampling = msgspec.structs.replace(request.sampling, num_logprobs=None, num_prompt_logprobs=None)
    return msgspec.structs.replace(request, sampling=sampling, style=PLAIN, service_tier=SHADOW_TIER)


def _part(prepared: Prepared) -> Part:
    request = prepared.generation.request
    return Part(request.request_id, prepared.generation.prompt_tokens, request.n, prepared.max_tokens)


def _within(prepared: Prepared, cap: int, instant_ns: int) -> Prepared:
    """Return the prompt with completions of at most `cap` tokens, counted as of the instant of its reservation."""
    request = prepared.generation.request
    sampling = request.sampling
    if sampling.max_tokens > cap:
        sampling = msgspec.structs.replace(sampling, max_tokens=cap)
    meter = encode_tag(msgspec.structs.replace(prepared.tag, created_at_ns=instant_ns))
    request = msgspec.structs.replace(request, sampling=sampling, meter=meter)
    return msgspec.structs.replace(prepared, generation=msgspec.structs.replace(prepared.generation, request=request))


def _prompts_said(asked: Iterable[Prompt], pool: PoolRevision) -> Iterable[LoggedMessage]:
    """Yield plain prompts for the request log: token ids as their text, in which there may be something to redact."""
    for prompt in asked:
        if isinstance(prompt, list):
            yield LoggedMessage(None, pool.tokenizer.decode(prompt))
        elif isinstance(prompt, str):
            yield LoggedMessage(None, prompt)


async def _worked_out(work: Callable[[list[int]], T], token_ids: list[int]) -> T:
    if len(token_ids) > THREAD_ABOVE_TOKENS:
        return await asyncio.to_thread(work, token_ids)
    return work(token_ids)
