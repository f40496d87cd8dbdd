"""The place of a request in the plan of a route, and the kinds of errors after which another step follows."""

from __future__ import annotations

from gateway.domain.errors import (
    ENGINE_UNAVAILABLE,
    BackendFailed,
    GatewayError,
    InvalidRequest,
    LimitReached,
    ModelNotFound,
    Overloaded,
)
from gateway.domain.routing.policy.document import ErrorKind
from gateway.domain.routing.policy.plan import Step
from gateway.pipeline.begun import TooSlow
from gateway.routing.experiments import RunningExperiment
from gateway.routing.planner import Planned
from gateway.routing.route import Route

Target = Route | RunningExperiment


class Steps:
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
