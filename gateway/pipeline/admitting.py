"""Admits prepared prompts: reserves the most that they can use, and makes the run of what was reserved.

Knows neither where a request goes nor how its prompts were prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from gateway.backends.pool import PoolRevision
from gateway.content.request_log import RequestContents
from gateway.content.transcript import LoggedMessage, Transcript
from gateway.domain.billing.book import SHADOW_TIER
from gateway.domain.billing.pricing import Rates
from gateway.domain.errors import GatewayError
from gateway.domain.experiments.exposure import Exposure
from gateway.domain.experiments.feedback.vote_ids import signed_id
from gateway.domain.limits.work import PromptWork
from gateway.domain.routing.retry_budget import RetryBudget
from gateway.limits.limiter import Limiter
from gateway.metering.tag import encode_tag
from gateway.pipeline.context import RequestContext
from gateway.pipeline.placing import Placed
from gateway.pipeline.requests import Prompt
from gateway.pipeline.run import Prepared, ReplyDetails, Run
from gateway.routing.route import Route

Refused = Callable[[RequestContext, Exposure, str, GatewayError], None]
"""A function that records that a request of an experiment was refused, with its service tier and the error."""


FindRates = Callable[[str, str, str, str, int], Rates | None]
"""A function that returns the rates of a model for a project.

It takes the ids of organization and project, the model, the service tier, and an instant in Unix nanoseconds.
"""


class Admitting:
    """Admits the requests of one gateway process."""

    def __init__(
        self, limiter: Limiter, contents: RequestContents, refused: Refused, rates_of: FindRates | None = None
    ) -> None:
        """Prepare to admit requests.

        refused: called where a request is refused, with its arm of an experiment.
        rates_of: finds the rates of requests, for replies that tell their cost; None: no reply tells its cost.
        """
        self._rates_of = rates_of
        self._limiter = limiter
        self._contents = contents
        self._refused = refused
        self._budget = RetryBudget()
        self._shadow_budget = RetryBudget()  # retries of copies take none from requests

    async def admit(
        self,
        context: RequestContext,
        placed: Placed,
        prepared: Sequence[Prepared],
        asked: Sequence[Prompt],
        *,
        instant_ns: int | None = None,
    ) -> Run:
        """Return the run of a request's prompts, whose completions may be bounded lower than asked for.

        instant_ns: the time of the request, where it was admitted before elsewhere; None: now.

        Raises LimitReached: when a limit of the caller has not enough left.
        Raises Overloaded: when the limits cannot be asked.
        """
        route, pool, first, principal = placed.route, placed.pool, prepared[0], context.principal
        admission = await self._limiter.admit(
            principal,
            route.model,
            tuple(_prompt_work(each) for each in prepared),
            service_tier=first.tag.service_tier,
            min_tokens=first.generation.request.sampling.min_tokens,
            capacity=pool.max_in_flight,
            is_free=bool(first.generation.key_owner),
            is_batch=context.batch is not None,
        )
        instant_ns = admission.instant_ns if instant_ns is None else instant_ns
        admitted = [_with_cap(each, admission.cap, instant_ns) for each in prepared]
        transcript, close = None, admission.close
        if principal.log_content_days:
            messages = context.logged_messages if context.logged_messages is not None else _logged_prompts(asked, pool)
            transcript = Transcript(context.request_id, context.endpoint, context.model or "", messages)
            close = self._logged(principal.project_id, transcript, admission.close)
        run = Run(context, pool, self._budget, route.adapter, admitted, admission.headers, close, transcript)
        if self._rates_of is not None:
            is_free = bool(first.generation.key_owner)
            tier, caller = first.tag.service_tier, (principal.organization_id, principal.project_id)
            rates = Rates() if is_free else self._rates_of(*caller, route.model, tier, instant_ns)
            run.details = ReplyDetails(pool.name, rates)
        run.give_back = admission.close
        run.instant_ns = instant_ns
        if placed.exposure is not None:
            run.vote_id = signed_id(placed.project_key, context.request_id)
            run.on_unanswered = partial(self._refused, context, placed.exposure, first.tag.service_tier)
        return run

    async def admit_shadow(
        self, context: RequestContext, route: Route, pool: PoolRevision, prepared: Sequence[Prepared]
    ) -> Run:
        """Return the run of a copy of a request. Only the payer's limits of cost count the copy.

        Raises as `admit`.
        """
        admission = await self._limiter.admit_shadow(
            context.principal,
            route.model,
            tuple(_prompt_work(each) for each in prepared),
            service_tier=SHADOW_TIER,
            min_tokens=prepared[0].generation.request.sampling.min_tokens,
            is_free=bool(prepared[0].generation.key_owner),
        )
        admitted = [_with_cap(each, admission.cap, admission.instant_ns) for each in prepared]
        run = Run(context, pool, self._shadow_budget, route.adapter, admitted, (), admission.close, None)
        run.waits = False
        return run

    def _logged(self, project_id: str, transcript: Transcript, close: Callable[[], None]) -> Callable[[], None]:
        """Return a function that calls `close` and, the first time, has the transcript written in the background.

        close: ends the run.
        """
        is_kept = False

        def close_and_log() -> None:
            nonlocal is_kept
            close()
            if not is_kept:
                is_kept = True
                self._contents.keep(project_id, transcript)

        return close_and_log


def _prompt_work(prepared: Prepared) -> PromptWork:
    request = prepared.generation.request
    return PromptWork(request.request_id, prepared.generation.prompt_tokens, request.n, prepared.max_tokens)


def _with_cap(prepared: Prepared, cap: int, instant_ns: int) -> Prepared:
    """Return the prompt with completions of at most `cap` tokens, and with the instant of its reservation."""
    request = prepared.generation.request
    sampling = request.sampling
    if sampling.max_tokens > cap:
        sampling = msgspec.structs.replace(sampling, max_tokens=cap)
    meter = encode_tag(msgspec.structs.replace(prepared.tag, created_at_ns=instant_ns))
    request = msgspec.structs.replace(request, sampling=sampling, meter=meter)
    return msgspec.structs.replace(prepared, generation=msgspec.structs.replace(prepared.generation, request=request))


def _logged_prompts(asked: Iterable[Prompt], pool: PoolRevision) -> Iterable[LoggedMessage]:
    """Yield plain prompts for the request log: token ids as their text, in which there may be something to redact."""
    for prompt in asked:
        if isinstance(prompt, list):
            yield LoggedMessage(None, pool.tokenizer.decode(prompt))
        elif isinstance(prompt, str):
            yield LoggedMessage(None, prompt)
