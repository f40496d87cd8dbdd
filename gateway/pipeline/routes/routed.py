"""Requests by the name of a routing policy: the plan for each, and its steps until one has begun to answer.

A step that another one may follow runs up to its first token before the reply begins. One step of a request is billed:
the operator bears the tokens of the earlier ones, whose reservations are given back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import structlog
from msgspec.structs import replace

from gateway.domain.errors import GatewayError, ModelNotFound
from gateway.domain.experiments.shadowing import Outcome as ShadowOutcome
from gateway.domain.routing.policy.document import USUAL_ERRORS, Accept
from gateway.domain.routing.policy.plan import edges_to
from gateway.metering.meter import Meter
from gateway.observability.route_metrics import RouteMetrics
from gateway.pipeline.collected import Collected
from gateway.pipeline.context import RequestContext
from gateway.pipeline.items.hedged import Hedging
from gateway.pipeline.placing import PlacedShadow
from gateway.pipeline.requests import TextRequest
from gateway.pipeline.routes.budgets import Budgets, RouteBudgets
from gateway.pipeline.routes.check import NotAccepted, is_accepted
from gateway.pipeline.routes.facts import facts_of
from gateway.pipeline.routes.steps import Steps, Target, kind_of
from gateway.pipeline.routes.trial import Trial, row_id
from gateway.pipeline.run import Run
from gateway.routing.experiments import RunningExperiment
from gateway.routing.planner import Planned, Planner
from gateway.routing.policies import RoutedPolicy
from gateway.routing.route import Route
from gateway.support.project_threads import ProjectThreads

ROUTE_HEADER = "x-lorikeet-route"
"""The header of a reply with `<name>@<version>` of the route that chose its target."""
TARGET_HEADER = "x-lorikeet-target"
"""The header of a reply with the model string of the target that answers."""
ATTEMPTS_HEADER = "x-lorikeet-attempts"
"""The header of a reply with the number of targets that were tried, including the one that answers."""

Try = Callable[[Target, Trial], Awaitable[Run]]
"""A function that prepares and admits a request at a target, and returns its run."""

MakeCopy = Callable[[RequestContext, Sequence[TextRequest], Run, PlacedShadow], None]
"""A function that starts a copy of a request once the reply of the request's run is over."""

CHECK_S = 0.25
"""Seconds between checks, during a wait, whether the client still waits."""

log = structlog.get_logger(__name__)


class RoutedRequests:
    """Runs requests by plans. One per gateway process."""

    def __init__(self, planner: Planner, meter: Meter, metrics: RouteMetrics, copy: MakeCopy) -> None:
        self._planner = planner
        self._meter = meter
        self._metrics = metrics
        self._copy = copy
        self._budgets = Budgets()
        # An answer that is there is never refused: as many are checked as requests were admitted.
        self._checking = ProjectThreads("checking answers", "requests", max_waiting=None)

    async def first_target(self, context: RequestContext, policy: RoutedPolicy) -> Target:
        """Return the first target of a policy, for a request that has no second try.

        Raises ModelNotFound: when no target can be used.
        """
        planned = await self._plan(context, policy, ())
        if not planned.plan.steps:
            raise ModelNotFound(policy.name)
        return planned.found[planned.plan.steps[0].target]

    async def complete(
        self, context: RequestContext, policy: RoutedPolicy, asked: Sequence[TextRequest], try_at: Try
    ) -> Run:
        """Return the run of the first step that has begun to answer, or the last one's run, which may not have begun.

        Raises ModelNotFound: when no target can be used.
        Raises the error of the last step that was tried: when all steps have failed.
        """
        budget = f"{context.principal.project_id} {policy.id}"  # of a route for many projects, each has its own
        budgets = self._budgets.sent(budget, time.monotonic())
        planned = await self._plan(context, policy, asked)
        steps = Steps(planned, partial(self._may_wait, context, policy, budgets))
        while steps.step is not None:
            await self._wait(context, steps.step.wait_ms)
            context.check()
            try:
                run = await self._at_step(context, policy, steps, budgets, try_at)
            except GatewayError as error:
                self._failed(context, policy, steps, error)
                if not steps.advance(kind_of(error)):
                    raise
                continue
            self._record_target(context, policy, steps, run, asked)
            return run
        raise ModelNotFound(policy.name)

    async def _at_step(
        self, context: RequestContext, policy: RoutedPolicy, steps: Steps, budgets: RouteBudgets, try_at: Try
    ) -> Run:
        """Run one step: to its end if its answer is checked, else up to its first item if another step may follow."""
        step, attempts = steps.step, steps.attempts
        assert step is not None
        accept, own_id = step.accept, row_id(context.request_id, steps.row)
        if accept is not None and isinstance(steps.target, RunningExperiment):
            raise ModelNotFound(step.target)  # an answer that nobody sees is none of an experiment
        wants_logprobs = accept is not None and accept.min_logprob is not None
        trial = Trial(attempts.start, steps.row, wants_logprobs, steps.instant_ns, steps.follows)
        run = await try_at(steps.target, trial)
        steps.instant_ns = run.instant_ns
        run.took = self._speed_recorder(context, steps.target)
        if step.hedge_ms is not None:
            run.hedging = self._hedging(policy, own_id, step.hedge_ms, budgets)
        if not steps.may_go_on:
            run.serves()
            return run

        def give_up() -> None:
            if self._meter.has_sent(own_id, attempts):
                self._meter.supersede(own_id, attempts)

        bound_s = None if step.first_token_ms is None else step.first_token_ms / 1e3
        try:
            if accept is None:
                await run.begin(bound_s, steps.follows, give_up)
            elif await self._is_accepted(context, accept, await run.begin_whole(bound_s, steps.follows, give_up)):
                run.serve_whole()
            else:
                raise NotAccepted("The answer was not accepted.")
        except GatewayError as error:
            if run.call is not None:
                run.call.note(error)
            if not steps.follows(error):
                run.serves()
                run.close()
                raise
            run.give_back()
            if isinstance(error, NotAccepted):
                steps.use_row()
            elif self._meter.has_sent(own_id, attempts):
                steps.use_attempts()
            raise
        except BaseException:
            run.serves()
            run.close()
            raise
        run.serves()
        return run

    async def _is_accepted(self, context: RequestContext, accept: Accept, collected: Collected) -> bool:
        return await is_accepted(self._checking, context.principal.project_id, accept, collected)

    def _may_wait(self, context: RequestContext, policy: RoutedPolicy, budgets: RouteBudgets, wait_ms: int) -> bool:
        """Tell whether a further round may begin after a wait.

        It may not if the route has made too many further rounds lately, or if the wait would outlast the request's
        deadline.
        """
        end_s = asyncio.get_running_loop().time() + wait_ms / 1e3
        is_allowed = (context.deadline is None or end_s < context.deadline) and budgets.retries.take(time.monotonic())
        self._metrics.count_retry(_label(policy), is_allowed=is_allowed)
        return is_allowed

    async def _wait(self, context: RequestContext, wait_ms: int) -> None:
        """Wait before a step, or until the client leaves."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + wait_ms / 1e3
        while (left_s := end_s - loop.time()) > 0:
            await asyncio.sleep(min(left_s, CHECK_S))
            context.check()

    def _hedging(self, policy: RoutedPolicy, own_id: str, delay_ms: float, budgets: RouteBudgets) -> Hedging:
        """Return the terms of a second try at a prompt.

        own_id: the id of the prompt's row in the ledger. delay_ms: the milliseconds without a first token after which
        the second try begins.
        """
        was_refused = False

        def may_begin(attempts: range) -> bool:
            nonlocal was_refused
            if not self._meter.has_sent(own_id, attempts):
                return False  # it waits for a place here, and a second one would wait as well
            is_allowed = budgets.hedges.take()
            if not (is_allowed or was_refused):
                self._metrics.count_hedge(_label(policy), "refused")
            was_refused = not is_allowed
            return is_allowed

        def won(is_second: bool) -> None:
            self._metrics.count_hedge(_label(policy), "second" if is_second else "first")

        return Hedging(delay_ms / 1e3, may_begin, partial(self._meter.outrun, own_id), won)

    def _speed_recorder(self, context: RequestContext, target: Target) -> Callable[[float, float], None] | None:
        if isinstance(target, RunningExperiment):
            return None  # its arms are several models

        def took(first_token_ms: float, token_ms: float) -> None:
            self._planner.measured.add(
                context.principal.project_id,
                target.model,
                time.monotonic(),
                first_token_ms=first_token_ms,
                token_ms=token_ms,
            )

        return took

    def _failed(self, context: RequestContext, policy: RoutedPolicy, steps: Steps, error: GatewayError) -> None:
        """Log and count a step that ended in an error."""
        assert steps.step is not None
        outcome = kind_of(error) or "refused"
        steps.note(outcome)
        log.info(
            "route_attempt",
            request_id=context.request_id,
            route=policy.label,
            target=steps.step.target,
            path=steps.step.path,
            error=error.code,
        )
        if outcome in USUAL_ERRORS and isinstance(steps.target, Route):
            self._planner.measured.record_failure(context.principal.project_id, steps.target.model, time.monotonic())
        self._count_outcome(policy, steps, outcome, is_followed=steps.follows(error))

    def _record_target(
        self,
        context: RequestContext,
        policy: RoutedPolicy,
        steps: Steps,
        run: Run,
        asked: Sequence[TextRequest],
    ) -> None:
        """Record the route and the target of a reply in its headers, its log line and the metrics."""
        assert steps.step is not None
        steps.note("served")
        if steps.row and run.details is not None:  # answers that were not accepted are billed as well
            run.details = replace(run.details, rates=None)
        target, num_tried = steps.step.target, str(steps.num_tried)
        run.headers = (
            *run.headers,
            (ROUTE_HEADER, policy.label),
            (TARGET_HEADER, target),
            (ATTEMPTS_HEADER, num_tried),
        )
        run.log_fields = {
            "route_policy": policy.label,
            "route_target": target,
            "route_attempts": num_tried,
            "route_tried": steps.tried,
        }
        self._count_outcome(policy, steps, "served", is_followed=False)
        for number, copy in enumerate(steps.step.copies):
            found = steps.usable_target(copy.target)
            payer = None
            if copy.payer is not None:
                payer = replace(context.principal, project_id=copy.payer, models=None, permissions=frozenset())
            route = found if isinstance(found, Route) else None
            self._copy(context, asked, run, PlacedShadow(route, _ignore_outcome, payer=payer, suffix=f"_{number}"))

    def _count_outcome(self, policy: RoutedPolicy, steps: Steps, outcome: str, *, is_followed: bool) -> None:
        assert steps.step is not None
        route = _label(policy)
        self._metrics.count_branches(route, edges_to(steps.step.path))
        self._metrics.count_attempt(route, outcome, is_followed=is_followed)

    async def _plan(self, context: RequestContext, policy: RoutedPolicy, asked: Sequence[TextRequest]) -> Planned:
        principal = context.principal
        facts = facts_of(context, policy, asked)
        return await self._planner.plan(principal.project_id, principal.organization_id, policy.document, facts)


def _label(policy: RoutedPolicy) -> str:
    """Return the name of a route in metrics."""
    return f"{policy.named.owner_id}/{policy.name}"


def _ignore_outcome(outcome: ShadowOutcome) -> None:
    """Ignore the outcome of a copy, which counts in a metric alone."""
