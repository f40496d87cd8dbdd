"""Requests by the name of a routing policy: the plan for each, and its steps until one has begun to answer.

A step that another one follows runs up to its first token before its reply begins. Whatever it used until then is the
operator's, and what it had reserved is given back: of a request one step is billed.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import structlog

from gateway.domain.errors import (
    ENGINE_UNAVAILABLE,
    BackendFailed,
    GatewayError,
    InvalidRequest,
    LimitReached,
    ModelNotFound,
    Overloaded,
)
from gateway.domain.routing.policy.document import ErrorKind, metadata_keys
from gateway.domain.routing.policy.facts import Facts
from gateway.domain.routing.policy.plan import Step
from gateway.metering.meter import Meter
from gateway.pipeline.begun import TooSlow
from gateway.pipeline.context import RequestContext
from gateway.pipeline.requests import Conversation, Prompt, TextRequest
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

USUAL_MAX_TOKENS = 256
BYTES_PER_TOKEN = 4

ATTEMPTS_PER_STEP = 8
"""Numbers of attempts that a step has to itself; more than `attempts.MAX_ATTEMPTS` and the free one after a death."""

Target = Route | RunningExperiment
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
        walk = _Steps(planned)
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

    async def _at_step(self, context: RequestContext, walk: _Steps, try_at: Try) -> Run:
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

    def _mark(self, context: RequestContext, policy: RoutedPolicy, walk: _Steps, run: Run) -> None:
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
        principal, now = context.principal, datetime.datetime.now(datetime.UTC)
        facts = Facts(
            route_id=policy.id,
            request_id=context.request_id,
            user=context.unit("user"),
            key_id=principal.api_key_id,
            metadata={key: context.unit(f"metadata.{key}") for key in metadata_keys(policy.document)},
            prompt_tokens=sum(estimated_tokens(each.prompt) for each in asked),
            max_tokens=sum(each.max_tokens or each.usual_max_tokens or USUAL_MAX_TOKENS for each in asked),
            tools=any(isinstance(each.prompt, Conversation) and each.prompt.tools is not None for each in asked),
            tier=asked[0].service_tier if asked else "default",
            stream=context.stream,
            minute=now.hour * 60 + now.minute,
        )
        return await self._planner.plan(principal.project_id, principal.organization_id, policy.document, facts)


class _Steps:
    """The place in a plan."""

    def __init__(self, planned: Planned) -> None:
        self.number = 0
        """The number of the step that is tried."""
        self.num_tried = 1
        """The steps that were tried, with this one."""
        self._steps = planned.plan.steps
        self._found = planned.found
        self._slow: set[str] = set()  # pools that were too slow for a step

    @property
    def step(self) -> Step | None:
        """The step that is tried; None in a plan without any."""
        return self._steps[self.number] if self._steps else None

    @property
    def target(self) -> Target:
        return self._found[self._steps[self.number].target]

    @property
    def may_go_on(self) -> bool:
        """Whether another step follows some error of this one."""
        return any(self.goes_on(kind) for kind in self._steps[self.number].then)

    def goes_on(self, kind: ErrorKind) -> bool:
        """Tell whether another step follows such an error."""
        return self._next(kind) is not None

    def follows(self, error: GatewayError) -> bool:
        """Tell whether another step follows an error of this one."""
        kind = kind_of(error)
        return kind is not None and self.goes_on(kind)

    def advance(self, kind: ErrorKind) -> bool:
        """Go to the step that follows an error; return False where none does."""
        following = self._next(kind)
        if following is None:
            return False
        if kind == "timeout":
            self._slow |= _pools_of(self.target)
        self.number = following
        self.num_tried += 1
        return True

    def _next(self, kind: ErrorKind) -> int | None:
        """Return the number of the step that follows an error. A pool that was too slow gets no second request of the
        same id while it may still work on the first."""
        slow = self._slow | _pools_of(self.target) if kind == "timeout" else self._slow
        following = self._steps[self.number].then.get(kind)
        while following is not None and slow & _pools_of(self._found[self._steps[following].target]):
            following = self._steps[following].then.get("timeout")
        return following


def _pools_of(target: Target) -> set[str]:
    if isinstance(target, Route):
        return {target.base}
    return {arm.route.base for arm in target.arms if arm.route is not None}


def kind_of(error: GatewayError) -> ErrorKind | None:
    """Return what a policy calls an error; None for one that would be the same at any target."""
    match error:
        case TooSlow():
            return "timeout"
        case ModelNotFound():
            return "unavailable"
        case LimitReached():
            return "rate_limited"
        case Overloaded():
            return "unavailable" if error.code == ENGINE_UNAVAILABLE else "overloaded"
        case BackendFailed():
            return "failed"
        case InvalidRequest() if error.code in ("context_length_exceeded", "prompt_too_long"):
            return "context_length"
    return None


def estimated_tokens(prompt: Prompt) -> int:
    """Return about how many tokens a prompt has, before any model has read it: one per four bytes of its text."""
    if isinstance(prompt, list):
        return len(prompt)
    size = len(prompt.encode()) if isinstance(prompt, str) else len(msgspec.json.encode(prompt.messages))
    return -(-size // BYTES_PER_TOKEN)
