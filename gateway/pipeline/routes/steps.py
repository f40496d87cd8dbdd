"""The place of a request in the plan of a route, and the kinds of errors after which another step follows."""

from __future__ import annotations

from collections.abc import Callable

from gateway.domain.errors import (
    ENGINE_UNAVAILABLE,
    BackendFailed,
    GatewayError,
    InvalidRequest,
    LimitReached,
    ModelNotFound,
    Overloaded,
    ProviderKeyMissing,
    ProviderKeyRefused,
)
from gateway.domain.routing.policy.document import Outcome
from gateway.domain.routing.policy.plan import Step
from gateway.pipeline.items.first_item import TooSlow
from gateway.pipeline.routes.check import NotAccepted
from gateway.routing.experiments import RunningExperiment
from gateway.routing.planner import Planned
from gateway.routing.route import Route

Target = Route | RunningExperiment

ATTEMPTS_PER_STEP = 8
"""The number of attempts reserved for each step: more than `attempts.MAX_ATTEMPTS` and the free one after a death."""


class Steps:
    """The position of a request in the plan of a route."""

    def __init__(self, planned: Planned, may_wait: Callable[[int], bool]) -> None:
        """Begin at the first step of a plan.

        may_wait: tells whether the request may be tried again after so many milliseconds; asked once before each step
        to which an error leads.
        """
        self.number = 0
        """The number of the step that is tried."""
        self.num_tried = 1
        """The number of steps that were tried, including the present one."""
        self.instant_ns: int | None = None
        """The time of the request in Unix nanoseconds; None until a step was admitted."""
        self.attempts = range(ATTEMPTS_PER_STEP)
        """The numbers of the attempts that the step may make."""
        self.row = 0
        """The number of the step's row in the ledger: each answer that was not accepted has a row of its own."""
        self._may_wait = may_wait
        self._waits: dict[int, bool] = {}  # by the number of the step that would begin after a wait
        self._tried: list[tuple[str, str]] = []
        self._steps = planned.plan.steps
        self._found = planned.found

    @property
    def step(self) -> Step | None:
        """Return the step that is tried; None in a plan without any."""
        return self._steps[self.number] if self._steps else None

    @property
    def target(self) -> Target:
        """Return the target of the step that is tried."""
        return self._found[self._steps[self.number].target]

    @property
    def may_go_on(self) -> bool:
        """Tell whether some error of this step leads to another step."""
        return bool(self._steps[self.number].then)

    def follows(self, error: GatewayError) -> bool:
        """Tell whether an error of this step leads to another step."""
        return self._next(kind_of(error)) is not None

    @property
    def tried(self) -> str:
        """The targets that were tried, each with its outcome, in order, as text."""
        return " ".join(f"{target}={outcome}" for target, outcome in self._tried)

    def note(self, outcome: str) -> None:
        """Record the outcome of the step."""
        self._tried.append((self._steps[self.number].target, outcome))

    def advance(self, kind: Outcome | None) -> bool:
        """Go to the step that follows an error; return False where none does.

        kind: the kind of the error; None: one after which nothing follows.
        """
        following = self._next(kind)
        if following is None:
            return False
        self.number = following
        self.num_tried += 1
        return True

    def _next(self, kind: Outcome | None) -> int | None:
        """Return the number of the step that follows an outcome; None where no step follows, or no more may be taken.

        kind: the kind of the error; None: an error after which no step follows.
        """
        following = None if kind is None else self._steps[self.number].then.get(kind)
        if following is None or not (wait_ms := self._steps[following].wait_ms):
            return following
        if following not in self._waits:
            self._waits[following] = self._may_wait(wait_ms)
        return following if self._waits[following] else None

    def use_attempts(self) -> None:
        """Record that the step has sent an attempt, so that the next step's attempts get other numbers.

        The first attempt that was sent at a request has the number 0, by which lists know the request.
        """
        self.attempts = range(self.attempts.stop, self.attempts.stop + ATTEMPTS_PER_STEP)

    def use_row(self) -> None:
        """Record that the step's rejected answer is billed, so that the next step gets a row of its own."""
        self.row, self.attempts = self.row + 1, range(ATTEMPTS_PER_STEP)

    def usable_target(self, target: str) -> Target | None:
        """Return the target that a model string of the document stands for; None where it cannot be used."""
        return self._found.get(target)


def kind_of(error: GatewayError) -> Outcome | None:
    """Return the kind of an error in a policy's terms; None for an error that would be the same at any target."""
    match error:
        case NotAccepted():
            return "rejected"
        case TooSlow():
            return "timeout"
        case ModelNotFound() | ProviderKeyMissing() | ProviderKeyRefused():
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
