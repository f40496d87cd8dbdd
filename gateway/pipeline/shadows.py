"""Copies of requests that run on a shadow target: after the request itself, on spare room, and unseen by its client.

A copy begins once the reply to its request is over, so it can change neither the reply nor its time. It runs as any
request does (`Pipeline.admit_shadow`), billed in the tier `shadow` to its payer: the caller, whose experiment has a
shadow arm, or an operator. Engines know the copy under a fairness account of its own. Copies are bounded: one for which
there is no room is dropped, and every copy has one `Outcome`.
Knows neither experiments nor routes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import structlog
from prometheus_client import Counter

from gateway.db.pool import FAILURES
from gateway.domain.errors import GatewayError, InvalidRequest, LimitReached, ModelNotFound, Overloaded
from gateway.domain.experiments.exposure import Exposure
from gateway.domain.experiments.shadowing import Outcome
from gateway.domain.tenancy.principal import Principal
from gateway.domain.tracing import names
from gateway.domain.tracing.span import Attributes, SpanEvent
from gateway.observability.tracing.trace import UNTRACED, Trace, Traced
from gateway.pipeline.context import RequestContext
from gateway.pipeline.requests import TextRequest
from gateway.pipeline.run import Run
from gateway.routing.route import Route

log = structlog.get_logger(__name__)

MAX_WAITING = 64
MAX_WAITING_PER_PROJECT = 16
MAX_WAITING_TOKENS = 1 << 19
"""The most copies that wait in one gateway process, of all projects and of one, and tokens of all their prompts."""

SPARE_SHARE = 0.35
"""The share of a pool's places in use below which a copy begins, provided that no request waits there."""

RETRY_S = 0.25
MAX_WAIT_S = 30.0
MAX_RUN_S = 300.0
STOP_S = 5.0

ID_SUFFIX = "_shadow"


class Shadow(msgspec.Struct, frozen=True):
    """A copy of a request, before it runs."""

    context: RequestContext
    """The request that is copied."""
    asked: Sequence[TextRequest]
    """The prompts of the request, as its client wrote them."""
    num_tokens: int
    """The tokens of the request's prompts."""
    route: Route | None
    """The route of the copy; None where its target does not exist any more."""
    payer: Principal
    """The principal that is charged for the copy and whose cost limits apply: the caller, or an operator's project."""
    ended: Callable[[Outcome], None]
    """The function that is called once, with the outcome of the copy."""
    exposure: Exposure | None = None
    """The shadow arm, where an experiment asks for the copy."""
    suffix: str = ""
    """The end of the copy's id, where several copies of one request may run."""
    trace: Traced = UNTRACED
    """The copy's part of the trace of its request, once the copy runs."""

    @property
    def id(self) -> str:
        """The id of the copy's row in the ledger."""
        return self.context.request_id + ID_SUFFIX + self.suffix

    @property
    def own_context(self) -> RequestContext:
        """The context in which the copy runs.

        The account is the caller's, also where another project pays: no project meets the cached prompts of another.
        """
        loop, context = asyncio.get_running_loop(), self.context
        return RequestContext(
            principal=self.payer,
            request_id=self.id,
            model=context.model,
            endpoint=context.endpoint,
            deadline=loop.time() + MAX_RUN_S,
            trace=self.trace,
            account=f"{context.principal.project_id}/shadow",
        )


class _Waiting(msgspec.Struct, frozen=True):
    """A copy that waits, and the time from which it waits."""

    shadow: Shadow
    since_s: float


class Shadows:
    """The copies of one gateway process, which run from `start` to `stop`."""

    def __init__(
        self,
        admit: Callable[[Shadow], Awaitable[Run]],
        has_room: Callable[[Route], bool],
        outcomes: Counter,
        *,
        max_running: int,
        max_wait_s: float = MAX_WAIT_S,
    ) -> None:
        """Start without copies.

        admit: raises as `Pipeline.complete`.
        has_room: tells whether a target has room to spare.
        outcomes: counts copies by their outcome.
        max_running: the most copies that run at once; 0: none runs.
        """
        self._admit = admit
        self._target_has_room = has_room
        self._max_wait_s = max_wait_s
        self._retry: asyncio.TimerHandle | None = None
        self._outcomes = outcomes
        self._max_running = max_running
        self._waiting: dict[str, deque[_Waiting]] = {}  # by project, the one whose turn is next first
        self._num_waiting = 0
        self._num_waiting_tokens = 0
        self._running: dict[asyncio.Task[Outcome], Shadow] = {}
        self._is_open = False

    @property
    def is_idle(self) -> bool:
        """Tell whether no copy runs or waits."""
        return not self._running and not self._num_waiting

    def start(self) -> None:
        """Accept copies from now on."""
        self._is_open = self._max_running > 0

    async def stop(self) -> None:
        """Drop the copies that wait, and abort those that run: what they used is billed."""
        self._is_open = False
        if self._retry is not None:
            self._retry.cancel()
        for waiting in list(self._waiting.values()):
            for each in waiting:
                self._end_copy(each.shadow, "stopped")
        self._waiting.clear()
        self._num_waiting = self._num_waiting_tokens = 0
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=STOP_S)

    def offer_after(self, close: Callable[[], None], shadow: Shadow) -> Callable[[], None]:
        """Return a function that calls `close` and, the first time that it is called, offers the copy to run.

        close: ends the run of the request that is copied.
        """
        is_offered = False

        def close_and_offer() -> None:
            nonlocal is_offered
            close()
            if not is_offered:
                is_offered = True
                self.offer(shadow)

        return close_and_offer

    def offer(self, shadow: Shadow) -> None:
        """Queue a copy to run when it is its project's turn, or drop it where there is no room."""
        if not self._is_open:
            self._end_copy(shadow, "stopped")
        elif shadow.context.gone():
            self._end_copy(shadow, "client_gone")
        elif shadow.route is None:
            self._end_copy(shadow, "target_gone")
        elif not self._has_room(shadow):
            self._end_copy(shadow, "full")
        else:
            now_s = asyncio.get_running_loop().time()
            project_id = shadow.context.principal.project_id
            self._waiting.setdefault(project_id, deque()).append(_Waiting(shadow, now_s))
            self._num_waiting += 1
            self._num_waiting_tokens += shadow.num_tokens
            self._fill()

    def _has_room(self, shadow: Shadow) -> bool:
        if len(self._running) < self._max_running and not self._num_waiting:
            return True
        return (
            self._num_waiting < MAX_WAITING
            and len(self._waiting.get(shadow.context.principal.project_id, ())) < MAX_WAITING_PER_PROJECT
            and self._num_waiting_tokens + shadow.num_tokens <= MAX_WAITING_TOKENS
        )

    def _fill(self) -> None:
        """Start copies while there is room, in this process and at their targets: one of each project in turn."""
        now_s = asyncio.get_running_loop().time()
        for project_id in list(self._waiting):
            self._drop_late(project_id, now_s)
        while self._is_open and len(self._running) < self._max_running:
            chosen = next((id for id, waiting in self._waiting.items() if self._may_begin(waiting[0].shadow)), None)
            if chosen is None:
                break
            waiting = self._waiting.pop(chosen)
            shadow = self._take_first(waiting)
            if waiting:
                self._waiting[chosen] = waiting
            task = asyncio.create_task(self._run(shadow))
            self._running[task] = shadow
            task.add_done_callback(self._ran)
        if self._waiting and self._retry is None and self._is_open:
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._fill_again)

    def _fill_again(self) -> None:
        self._retry = None
        self._fill()

    def _may_begin(self, shadow: Shadow) -> bool:
        return shadow.route is None or self._target_has_room(shadow.route)

    def _drop_late(self, project_id: str, now_s: float) -> None:
        """Drop the copies of a project that have waited for too long."""
        waiting = self._waiting[project_id]
        while waiting and now_s - waiting[0].since_s > self._max_wait_s:
            self._end_copy(self._take_first(waiting), "late")
        if not waiting:
            del self._waiting[project_id]

    def _take_first(self, waiting: deque[_Waiting]) -> Shadow:
        """Remove the first copy from a queue and return it."""
        shadow = waiting.popleft().shadow
        self._num_waiting -= 1
        self._num_waiting_tokens -= shadow.num_tokens
        return shadow

    def _ran(self, task: asyncio.Task[Outcome]) -> None:
        """Record the outcome of a copy whose task has ended, and start the next copy."""
        shadow = self._running.pop(task)
        if task.cancelled():
            self._end_copy(shadow, "failed")
        elif (error := task.exception()) is not None:
            log.error("shadow_failed", request_id=shadow.id, exc_info=error)
            self._end_copy(shadow, "failed")
        else:
            self._end_copy(shadow, task.result())
        self._fill()

    async def _run(self, shadow: Shadow) -> Outcome:
        """Run a copy, with spans where its request is traced, and return its outcome."""
        traced = shadow.context.trace.part()
        outcome: Outcome = "failed"
        try:
            outcome = await self._outcome(msgspec.structs.replace(shadow, trace=traced))
            return outcome
        finally:
            if traced.trace is not None:
                _end_span(traced.trace, shadow, outcome)

    async def _outcome(self, shadow: Shadow) -> Outcome:
        run = None
        try:
            async with asyncio.timeout(MAX_RUN_S):
                run = await self._admit(shadow)
                await run.collect()
        except ModelNotFound:
            return "target_gone"
        except (InvalidRequest, LimitReached):
            return "refused"
        except Overloaded:
            return "unavailable"
        except (GatewayError, TimeoutError):
            return "unavailable" if run is None else "failed"
        except FAILURES:
            return "unavailable" if run is None else "failed"
        finally:
            if run is not None:
                run.close()
        return "answered"

    def _end_copy(self, shadow: Shadow, outcome: Outcome) -> None:
        self._outcomes.labels(outcome).inc()
        shadow.ended(outcome)


def _end_span(trace: Trace, shadow: Shadow, outcome: Outcome) -> None:
    """End the span of a copy, which says the shadow arm where an experiment asked for the copy."""
    if shadow.exposure is not None:
        fields = shadow.exposure.log_fields(shadow.context.principal.project_id)
        arm: Attributes = {name: value for name, value in fields.items() if name.startswith(names.FLAG_PREFIX)}
        trace.first.events.append(SpanEvent(names.FLAG_EVENT, trace.first.start_ns, arm))
    trace.finish(
        names.SHADOW,
        {names.REQUEST_ID: shadow.id, names.TENANT: shadow.payer.project_id, names.OUTCOME: outcome},
        outcome if outcome in ("failed", "unavailable") else "",
    )
