"""The one way to run a request, for HTTP, batches and every other caller: place, prepare, admit, run, close.

Knows neither HTTP nor the names of an API's fields, nor which kind of backend answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

import msgspec
from prometheus_client import Counter

from engine.protocol import SamplingParams, Usage, UsageRecord
from gateway.backends.pool import Pool, PoolRevision
from gateway.content.request_log import RequestContents
from gateway.domain.billing.book import SHADOW_TIER
from gateway.domain.errors import GatewayError, ModelNotFound, ProviderKeyMissing
from gateway.domain.pools.provider_key import KeyUse
from gateway.experiments.notes import Notes
from gateway.limits.limiter import Limiter
from gateway.metering.meter import Meter
from gateway.observability.route_metrics import RouteMetrics
from gateway.pipeline.admitting import Admitting, FindRates
from gateway.pipeline.bounds import check_logprobs, check_numbers, check_total, num_logprob_values
from gateway.pipeline.context import RequestContext
from gateway.pipeline.defaults import with_defaults, with_treatment
from gateway.pipeline.model_call import ModelCall
from gateway.pipeline.placing import Placed, PlacedShadow, Placing
from gateway.pipeline.preparation import Preparation
from gateway.pipeline.requests import EmbeddingBounds, EmbeddingRequest, RankRequest, TextRequest
from gateway.pipeline.routes.routed import RoutedRequests
from gateway.pipeline.routes.trial import ALONE, Trial, row_id
from gateway.pipeline.run import Prepared, Run
from gateway.pipeline.shadows import SPARE_SHARE, Shadow, Shadows
from gateway.pipeline.token_requests import TokenRequests
from gateway.pipeline.tokenizing import Tokenizing
from gateway.routing.experiments import RunningExperiment
from gateway.routing.planner import Planner
from gateway.routing.policies import RoutedPolicy
from gateway.routing.resolve import Resolver
from gateway.routing.route import Route
from gateway.text.options import PLAIN

FindKeyUse = Callable[[str, PoolRevision], Awaitable[KeyUse]]
"""A function that returns whose key a project's requests to a pool are sent with, from the project's id and the pool.

Raises GatewayError: when that cannot be found out.
"""


class Pipeline:
    """The pipeline from requests of principals to the replicas of pools. A gateway process has one."""

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
        route_metrics: RouteMetrics,
        key_use: FindKeyUse,
        *,
        default_max_tokens: int,
        max_shadows: int,
        rates_of: FindRates | None = None,
    ) -> None:
        """Put the pipeline together.

        shadow_outcomes: counts copies of requests by their outcome.
        key_use: tells which key a project's requests to a pool are sent with.
        max_shadows: the most copies that run at once.
        rates_of: finds the rates of requests, for replies that tell their cost; None: no reply tells its cost.
        """
        self._key_use = key_use
        self._meter = meter
        self._placing = Placing(resolver, pools, notes, journal_id=meter.journal_id)
        self._routed = RoutedRequests(planner, meter, route_metrics, self._copy)
        self._admitting = Admitting(limiter, contents, self._placing.refused, rates_of)
        self.shadows = Shadows(self.admit_shadow, self._has_room, shadow_outcomes, max_running=max_shadows)
        """Copies of requests, to be started and stopped with the pipeline."""
        tokenizing = Tokenizing()
        self._preparation = Preparation(meter, limiter, tokenizing, default_max_tokens=default_max_tokens)
        self.tokens = TokenRequests(self._placing, tokenizing)
        """Requests for tokens and for the text of tokens."""

    async def base(self, context: RequestContext) -> str:
        """Return the name of the base model under the model that a request names.

        Raises ModelNotFound: when the caller may use no such model.
        """
        route, _ = await self._placing.route(context)
        return route.base

    async def sampling(self, context: RequestContext, request: TextRequest) -> SamplingParams:
        """Return the sampling that a request will have, with what its arm and its adapter add to the client's own.

        Raises ModelNotFound: when the caller may use no such model.
        """
        route, _ = await self._placing.route(context)
        if route.treatment is not None:
            request, _ = with_treatment(request, route.treatment)
        if route.adapter is not None:
            request = with_defaults(request, route.adapter.defaults)
        return request.sampling

    async def complete(self, context: RequestContext, asked: Sequence[TextRequest]) -> Run:
        """Admit completions of one prompt or several, which run when the Run is read.

        Raises ModelNotFound: when the caller may use no such model.
        Raises InvalidRequest: when a field cannot be served; the error has the client's name of the field.
        Raises LimitReached: when a limit of the caller has not enough left.
        Raises Overloaded: when the database or the engine cannot be asked.
        """
        found = await self._placing.find(context)
        if isinstance(found, RoutedPolicy):
            if context.logged_messages is not None and context.principal.log_content_days:
                messages = list(context.logged_messages)  # read by each trial
                context = msgspec.structs.replace(context, logged_messages=messages)
            return await self._routed.complete(context, found, asked, partial(self._complete_at, context, asked))
        return await self._complete_at(context, asked, found)

    async def _complete_at(
        self,
        context: RequestContext,
        asked: Sequence[TextRequest],
        found: Route | RunningExperiment,
        trial: Trial = ALONE,
    ) -> Run:
        """Admit completions at one target. trial: the place of the target among those that are tried."""
        is_followed = trial.is_followed
        exposure = self._placing.exposure(context, found)
        expose = partial(self._placing.expose, context, exposure)
        if is_followed is None:
            expose()
        call = ModelCall.begin(context, found.model)
        try:
            placed = self._placing.placed(context, found, exposure)
            run = await self._start_completions(context, placed, asked, trial)
        except GatewayError as error:
            if call is not None and is_followed is not None:  # else the request was refused, and no model was called
                call.note(error)
                call.end()
            if is_followed is None or not is_followed(error):
                if is_followed is not None:
                    expose()
                self._placing.refused(context, exposure, asked[0].service_tier, error)
            raise
        if is_followed is not None:
            run.serves = expose
        if call is not None:
            _trace_run(call, run, context, placed.route, placed.pool)
        if placed.shadow is not None:
            self._copy(context, asked, run, placed.shadow)
        return run

    def _copy(self, context: RequestContext, asked: Sequence[TextRequest], run: Run, placed: PlacedShadow) -> None:
        """Start a copy of a request on a shadow target once the reply to the request is over."""
        payer = placed.payer or context.principal
        shadow = Shadow(
            context, asked, run.num_prompt_tokens, placed.route, payer, placed.ended, placed.exposure, placed.suffix
        )
        run.close = self.shadows.offer_after(run.close, shadow)

    async def _start_completions(
        self, context: RequestContext, placed: Placed, asked: Sequence[TextRequest], trial: Trial
    ) -> Run:
        prepared, num_values = [], 0
        key_owner = await self._key_owner(context.principal.project_id, placed.pool)
        for index, each in enumerate(asked):
            own_id = row_id(context.request_id, trial.row + index)
            if trial.with_logprobs and "logprobs" in placed.pool.capabilities.features:
                each = _with_logprobs(each)
            good = await self._preparation.completion(
                context, placed.route, placed.pool, each, own_id, placed.exposure, key_owner
            )
            num_values += num_logprob_values(good.generation.request)
            check_logprobs(num_values, each.names.logprobs)
            first_attempt = trial.first_attempt + (context.batch.first_attempt if context.batch is not None else 0)
            prepared.append(_numbered(good, first_attempt) if first_attempt else good)
            if len(asked) > 1:
                await asyncio.sleep(0)  # the streams of others go on while many prompts are tokenized
            context.check()
        prompts = [each.prompt for each in asked]
        instant_ns = trial.instant_ns
        if context.batch is not None:
            instant_ns = context.batch.instant_ns
        run = await self._admitting.admit(context, placed, prepared, prompts, instant_ns=instant_ns)
        self._supersede_earlier(context, run)
        return run

    def disown(self, request_id: str, attempts: Iterable[int]) -> None:
        """Ensure that nobody is billed for attempts at a line of a batch that are about to be aborted."""
        self._meter.disown(request_id, attempts)

    def _supersede_earlier(self, context: RequestContext, run: Run) -> None:
        """Ensure that nobody is billed for earlier attempts at a line of a batch, when the line is begun again."""
        if context.batch is not None:
            for generation in run.generations:
                for attempt in range(context.batch.first_attempt):
                    request = generation.request
                    nothing = UsageRecord(request.request_id, attempt, "error", Usage(0, 0), request.meter)
                    self._meter.superseded(nothing, engine_id="", source=None)

    async def admit_shadow(self, shadow: Shadow) -> Run:
        """Admit the copy of a request. Only the payer's limits of cost count the copy.

        Raises as `complete`.
        """
        context, route = shadow.own_context, shadow.route
        if route is None:
            raise ModelNotFound(context.model or "")
        pool = self._placing.pool(route, route.id)
        # A project's key is used for its own requests alone, whoever pays for copies of others.
        is_own = shadow.payer.project_id == shadow.context.principal.project_id
        key_owner = await self._key_owner(shadow.payer.project_id if is_own else "", pool)
        call = ModelCall.begin(context, route.model)
        prepared = [
            await self._preparation.completion(
                context, route, pool, _unseen(each), row_id(shadow.id, index), shadow.exposure, key_owner
            )
            for index, each in enumerate(shadow.asked)
        ]
        run = await self._admitting.admit_shadow(context, route, pool, prepared)
        if call is not None:
            _trace_run(call, run, context, route, pool)
        return run

    async def _key_owner(self, project_id: str, pool: PoolRevision) -> str:
        """Return the project whose own key a pool's servers are asked with, "" for the pool's key.

        Raises ProviderKeyMissing: when the project needs a key of its own, and has none.
        """
        use = "pool" if pool.own_keys == "none" else await self._key_use(project_id, pool)
        if use == "missing":
            raise ProviderKeyMissing(pool.name)
        return project_id if use == "own" else ""

    def _has_room(self, route: Route) -> bool:
        """Tell whether a copy may begin at a route now."""
        return self._placing.has_spare_room(route, SPARE_SHARE)

    async def embed(
        self, context: RequestContext, asked: Sequence[EmbeddingRequest | RankRequest], bounds: EmbeddingBounds
    ) -> Run:
        """Admit embeddings of texts, or scores of documents, which run when the Run is read.

        Raises as `complete`.
        """
        found = await self._placing.find(context)
        if isinstance(found, RoutedPolicy):
            found = await self._routed.first_target(context, found)
        exposure = self._placing.exposure(context, found)
        self._placing.expose(context, exposure)
        call = ModelCall.begin(context, found.model)
        try:
            placed = self._placing.placed(context, found, exposure)
            run = await self._start_embeddings(context, placed, asked, bounds)
        except GatewayError as error:
            self._placing.refused(context, exposure, asked[0].service_tier, error)
            raise
        if call is not None:
            _trace_run(call, run, context, placed.route, placed.pool)
        return run

    async def _start_embeddings(
        self,
        context: RequestContext,
        placed: Placed,
        asked: Sequence[EmbeddingRequest | RankRequest],
        bounds: EmbeddingBounds,
    ) -> Run:
        route, pool, prepare = placed.route, placed.pool, self._preparation
        embeddings = [each for each in asked if isinstance(each, EmbeddingRequest)]
        check_numbers(embeddings, pool.capabilities.embedding_size, bounds)
        prepared, num_tokens = [], 0
        for index, each in enumerate(asked):
            own_id = row_id(context.request_id, index)
            good = (
                await prepare.embedding(context, route, pool, each, own_id, placed.exposure)
                if isinstance(each, EmbeddingRequest)
                else await prepare.ranked(context, route, pool, each, own_id, placed.exposure)
            )
            first_attempt = context.batch.first_attempt if context.batch is not None else 0
            prepared.append(_numbered(good, first_attempt) if first_attempt else good)
            num_tokens += prepared[-1].generation.prompt_tokens
            check_total(num_tokens, bounds, each.names.prompt)
            await asyncio.sleep(0)  # the streams of others go on while thousands of texts are tokenized
            context.check()
        instant_ns = context.batch.instant_ns if context.batch is not None else None
        prompts = [each.prompt for each in asked]
        run = await self._admitting.admit(context, placed, prepared, prompts, instant_ns=instant_ns)
        self._supersede_earlier(context, run)
        return run


def _trace_run(call: ModelCall, run: Run, context: RequestContext, route: Route, pool: PoolRevision) -> None:
    """Have a run record the spans of its call, which ends with the run at the latest."""
    call.prepared(route, pool, [each.request for each in run.generations], context)
    run.call, run.close, run.give_back = call, call.ending(run.close), call.ending(run.give_back)


def _numbered(prepared: Prepared, attempt: int) -> Prepared:
    """Return the prompt with the number of its first attempt set."""
    request = msgspec.structs.replace(prepared.generation.request, attempt=attempt)
    return msgspec.structs.replace(prepared, generation=msgspec.structs.replace(prepared.generation, request=request))


def _with_logprobs(request: TextRequest) -> TextRequest:
    """Return a request that gets the log-probability of each token, at least."""
    if request.sampling.num_logprobs is not None:
        return request
    return msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, num_logprobs=0))


def _unseen(request: TextRequest) -> TextRequest:
    """Return the request for a copy, without the fields that change only the form of the reply."""
    sampling = msgspec.structs.replace(request.sampling, num_logprobs=None, num_prompt_logprobs=None)
    return msgspec.structs.replace(request, sampling=sampling, style=PLAIN, service_tier=SHADOW_TIER)
