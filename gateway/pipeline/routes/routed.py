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
from gateway.metering.meter import Meter
from gateway.pipeline.context import RequestContext
from gateway.pipeline.requests import TextRequest
from gateway.pipeline.routes.facts import facts_of
from gateway.pipeline.routes.steps import Steps, Target, kind_of
from gateway.pipeline.run import Run
from gateway.routing.experiments import RunningExperiment
from gateway.routing.planner import Planned, Planner
from gateway.routing.policies import RoutedPolicy

ROUTE_HEADER = "x-lorikeet-route"
"""`<name>@<version>` of the route that a reply comes by."""
TARGET_HEADER = "x-lorikeet-target"
"""The model string of the target that answers."""
ATTEMPTS_HEADER = "x-lorikeet-attempts"
"""The number of targets that were tried, the last of which answers."""

ATTEMPTS_PER_STEP = 8
"""Numbers of attempts that a step has to itself; more than `attempts.MAX_ATTEMPTS` and the free one after a death."""

Try = Callable[[Target, int], Awaitable[Run]]
"""Prepares and admits the request at a target. The second argument is the number of its first attempt."""

log = structlog.get_logger(__name__)


class RoutedRequests:
    """Runs requests by plans. One per gateway process."""

    def __init__(self, planner: Planner, meter: Meter) -> None:
        self._planner = planner
        self._meter = meter

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
        planned = await self._plan(context, policy, asked)
        walk = Steps(planned)
        while walk.step is not None:
            context.check()
            try:
                run = await self._at_step(context, walk, try_at)
            except GatewayError as error:
                kind, step = kind_of(error), walk.step
                log.info(
                    "route_attempt",
                    request_id=context.request_id,
                    route=policy.label,
                    target=step.target,
                    error=error.code,
                )
                if kind is None or not walk.advance(kind):
                    raise
                continue
            self._mark(context, policy, walk, run)
            return run
        raise ModelNotFound(policy.name)

    async def _at_step(self, context: RequestContext, walk: Steps, try_at: Try) -> Run:
        """Run one step: up to its first item, if another step may follow."""
        step, first_attempt = walk.step, walk.number * ATTEMPTS_PER_STEP
        assert step is not None
        run = await try_at(walk.target, first_attempt)
        run.took = self._took(context, walk.target)
        if not walk.may_go_on:
            return run

        def give_up() -> None:
            attempts = range(first_attempt, first_attempt + ATTEMPTS_PER_STEP)
            self._meter.supersede(context.request_id, attempts)

        bound_s = None if step.first_token_ms is None or not walk.goes_on("timeout") else step.first_token_ms / 1e3
        try:
            await run.begin(bound_s, walk.follows, give_up)
        except GatewayError as error:
            (run.give_back if walk.follows(error) else run.close)()
            raise
        except BaseException:
            run.close()
            raise
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

    def _mark(self, context: RequestContext, policy: RoutedPolicy, walk: Steps, run: Run) -> None:
        """Let the reply and its log line say by which route and from which target it comes."""
        assert walk.step is not None
        target, num_tried = walk.step.target, str(walk.num_tried)
        run.headers = (
            *run.headers,
            (ROUTE_HEADER, policy.label),
            (TARGET_HEADER, target),
            (ATTEMPTS_HEADER, num_tried),
        )
        run.log_fields = {"route_policy": policy.label, "route_target": target, "route_attempts": num_tried}

    async def _plan(self, context: RequestContext, policy: RoutedPolicy, asked: Sequence[TextRequest]) -> Planned:
        principal = context.principal
        facts = facts_of(context, policy, asked)
        return await self._planner.plan(principal.project_id, principal.organization_id, policy.document, facts)
