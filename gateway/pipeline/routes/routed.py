"""Requests by the name of a routing policy: the plan for each, and its steps until one has begun to answer.

A step that another one follows runs up to its first token before its reply begins. Whatever it used until then is the
operator's, and what it had reserved is given back: of a request one step is billed.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence

import structlog

from gateway.domain.errors import (
    GatewayError,
    ModelNotFound,
)
from gateway.domain.routing.policy.document import USUAL_ERRORS
from gateway.domain.routing.policy.plan import edges_to
from gateway.metering.meter import Meter
from gateway.observability.route_metrics import RouteMetrics
from gateway.pipeline.context import RequestContext
from gateway.pipeline.requests import TextRequest
from gateway.pipeline.routes.facts import facts_of
from gateway.pipeline.routes.steps import Steps, Target, kind_of
from gateway.pipeline.routes.trial import Trial
from gateway.pipeline.run import Run
from gateway.routing.experiments import RunningExperiment
from gateway.routing.planner import Planned, Planner
from gateway.routing.policies import RoutedPolicy
from gateway.routing.route import Route

ROUTE_HEADER = "x-lorikeet-route"
"""`<name>@<version>` of the route that a reply comes by."""
TARGET_HEADER = "x-lorikeet-target"
"""The model string of the target that answers."""
ATTEMPTS_HEADER = "x-lorikeet-attempts"
"""The number of targets that were tried, the last of which answers."""

Try = Callable[[Target, Trial], Awaitable[Run]]
"""Prepares and admits the request at a target."""

log = structlog.get_logger(__name__)


class RoutedRequests:
    """Runs requests by plans. One per gateway process."""

    def __init__(self, planner: Planner, meter: Meter, metrics: RouteMetrics) -> None:
        self._planner = planner
        self._meter = meter
        self._metrics = metrics

    async def first_target(self, context: RequestContext, policy: RoutedPolicy) -> Target:
        """Return the target that a request goes to which is not tried again.

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
        Raises the error of the last step that was tried.
        """
        steps = Steps(await self._plan(context, policy, asked))
        while steps.step is not None:
            context.check()
            try:
                run = await self._at_step(context, steps, try_at)
            except GatewayError as error:
                self._failed(context, policy, steps, error)
                if not steps.advance(kind_of(error)):
                    raise
                continue
            self._began(policy, steps, run)
            return run
        raise ModelNotFound(policy.name)

    async def _at_step(self, context: RequestContext, steps: Steps, try_at: Try) -> Run:
        """Run one step: up to its first item, if another step may follow."""
        step, attempts = steps.step, steps.attempts
        assert step is not None
        run = await try_at(steps.target, Trial(attempts.start, steps.instant_ns, steps.follows))
        steps.instant_ns = run.instant_ns
        run.took = self._took(context, steps.target)
        if not steps.may_go_on:
            run.serves()
            return run

        def give_up() -> None:
            if self._meter.has_sent(context.request_id, attempts):
                self._meter.supersede(context.request_id, attempts)

        bound_s = None if step.first_token_ms is None else step.first_token_ms / 1e3
        try:
            await run.begin(bound_s, steps.follows, give_up)
        except GatewayError as error:
            if not steps.follows(error):
                run.serves()
                run.close()
                raise
            run.give_back()
            if self._meter.has_sent(context.request_id, attempts):
                steps.use_attempts()
            raise
        except BaseException:
            run.serves()
            run.close()
            raise
        run.serves()
        return run

    def _took(self, context: RequestContext, target: Target) -> Callable[[float, float], None] | None:
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
        """Log and count a step that has ended in an error."""
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
            self._planner.measured.failed(context.principal.project_id, steps.target.model, time.monotonic())
        self._count(policy, steps, outcome, is_followed=steps.follows(error))

    def _began(self, policy: RoutedPolicy, steps: Steps, run: Run) -> None:
        """Let the reply, its log line and the metrics say by which route and from which target it comes."""
        assert steps.step is not None
        steps.note("served")
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
        self._count(policy, steps, "served", is_followed=False)

    def _count(self, policy: RoutedPolicy, steps: Steps, outcome: str, *, is_followed: bool) -> None:
        assert steps.step is not None
        route = f"{policy.named.project_id}/{policy.name}"
        self._metrics.took(route, edges_to(steps.step.path))
        self._metrics.tried(route, outcome, is_followed=is_followed)

    async def _plan(self, context: RequestContext, policy: RoutedPolicy, asked: Sequence[TextRequest]) -> Planned:
        principal = context.principal
        facts = facts_of(context, policy, asked)
        return await self._planner.plan(principal.project_id, principal.organization_id, policy.document, facts)
