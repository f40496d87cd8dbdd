"""Copies of requests are bounded, take turns by project, and each ends in one outcome; the paying project is
charged."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

import prometheus_client
import pytest

from engine.protocol import SamplingParams
from gateway.domain.errors import BackendFailed, GatewayError, InvalidRequest, LimitReached, ModelNotFound, Overloaded
from gateway.domain.experiments.shadowing import is_shadowed
from gateway.domain.tenancy.principal import Principal
from gateway.pipeline import shadows
from gateway.pipeline.context import RequestContext
from gateway.pipeline.requests import FieldNames, TextRequest
from gateway.pipeline.run import Run
from gateway.pipeline.shadows import Shadow, Shadows
from gateway.routing.route import Route
from tests.patience import PATIENCE_S

ASKED = [TextRequest(prompt="abc", names=FieldNames("prompt"), sampling=SamplingParams(max_tokens=1))]


def principal(project_id: str) -> Principal:
    return Principal(organization_id="org", project_id=project_id, api_key_id="key", scopes=frozenset())


class _Run:
    """A fake run that ends or fails when a test allows it."""

    def __init__(self, let_go: asyncio.Event, error: Exception | None) -> None:
        self._let_go = let_go
        self._error = error
        self.is_closed = False

    async def collect(self) -> list[Any]:
        await self._let_go.wait()
        if self._error is not None:
            raise self._error
        return []

    def close(self) -> None:
        self.is_closed = True


class ShadowSite:
    """Copies over fake runs that tests end."""

    def __init__(
        self,
        max_running: int = 2,
        *,
        max_wait_s: float = 30.0,
        refusal: Exception | None = None,
        error: Exception | None = None,
    ) -> None:
        self.let_go = asyncio.Event()
        self.has_room = True
        self.admitted: list[str] = []
        self.runs: list[_Run] = []
        self.outcomes: Counter[str] = Counter()
        self._refusal, self._error = refusal, error
        counted = prometheus_client.Counter("c", "", ["outcome"], registry=prometheus_client.CollectorRegistry())
        self.shadows = Shadows(
            self._admit, lambda _: self.has_room, counted, max_running=max_running, max_wait_s=max_wait_s
        )
        self.shadows.start()

    async def _admit(self, shadow: Shadow) -> Run:
        self.admitted.append(shadow.context.principal.project_id)
        if self._refusal is not None:
            raise self._refusal
        self.runs.append(_Run(self.let_go, self._error))
        return cast("Run", self.runs[-1])

    def offer(self, project_id: str = "a", *, tokens: int = 1, gone: bool = False, is_there: bool = True) -> None:
        caller = principal(project_id)
        context = RequestContext(
            principal=caller, request_id="req_1", model="m", endpoint="/v1/completions", gone=lambda: gone
        )
        route = Route("m", "m", "m") if is_there else None
        shadow = Shadow(context, ASKED, tokens, route, caller, lambda outcome: self.outcomes.update([outcome]))
        self.shadows.offer(shadow)

    async def end(self) -> None:
        self.let_go.set()
        async with asyncio.timeout(PATIENCE_S):
            while not self.shadows.is_idle:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0)


async def test_copies_beyond_the_running_and_waiting_bounds_are_dropped() -> None:
    site = ShadowSite(max_running=2)
    for _ in range(2 + shadows.MAX_WAITING_PER_PROJECT + 5):
        site.offer("a")
    await asyncio.sleep(0)
    assert (len(site.runs), site.outcomes) == (2, {"full": 5})
    for number in range(shadows.MAX_WAITING):
        site.offer(f"other-{number}")
    assert site.outcomes == {"full": 5 + shadows.MAX_WAITING_PER_PROJECT}
    await site.end()
    assert site.outcomes["answered"] == 2 + shadows.MAX_WAITING
    assert all(run.is_closed for run in site.runs)


async def test_projects_take_turns() -> None:
    site = ShadowSite(max_running=1)
    for _ in range(4):
        site.offer("busy")
    site.offer("quiet")
    await site.end()
    assert site.admitted == ["busy", "busy", "quiet", "busy", "busy"]


async def test_a_copy_waits_until_its_target_has_room_to_spare() -> None:
    site = ShadowSite()
    site.has_room = False
    site.offer()
    await asyncio.sleep(2 * shadows.RETRY_S)
    assert (site.admitted, site.outcomes, site.shadows.is_idle) == ([], {}, False)
    site.has_room = True
    await site.end()
    assert site.outcomes == {"answered": 1}


async def test_long_prompts_that_wait_are_bounded_together() -> None:
    site = ShadowSite(max_running=1)
    for _ in range(4):
        site.offer(tokens=shadows.MAX_WAITING_TOKENS // 2)
    assert site.outcomes == {"full": 1}
    await site.end()
    assert site.outcomes == {"full": 1, "answered": 3}


async def test_a_copy_that_waited_for_too_long_is_dropped() -> None:
    site = ShadowSite(max_running=1, max_wait_s=0.05)
    site.offer()
    site.offer()
    await asyncio.sleep(0.1)
    await site.end()
    assert site.outcomes == {"answered": 1, "late": 1}


@pytest.mark.parametrize(
    ("refusal", "error", "outcome"),
    [
        (LimitReached("no money"), None, "refused"),
        (InvalidRequest("too long"), None, "refused"),
        (ModelNotFound("m"), None, "target_gone"),
        (Overloaded("no engine"), None, "unavailable"),
        (TimeoutError(), None, "unavailable"),
        (None, BackendFailed("it broke"), "failed"),
        (None, ValueError("a mistake of ours"), "failed"),
    ],
    ids=str,
)
async def test_each_copy_has_one_outcome(refusal: GatewayError | None, error: Exception | None, outcome: str) -> None:
    site = ShadowSite(refusal=refusal, error=error)
    site.offer()
    await site.end()
    assert site.outcomes == {outcome: 1}
    assert all(run.is_closed for run in site.runs)


async def test_nothing_runs_for_a_client_that_left_or_on_a_target_that_is_gone() -> None:
    site = ShadowSite()
    site.offer(gone=True)
    site.offer(is_there=False)
    await site.end()
    assert site.outcomes == {"client_gone": 1, "target_gone": 1}
    assert site.admitted == []


async def test_a_stop_aborts_what_runs_and_drops_what_waits() -> None:
    site = ShadowSite(max_running=1)
    for _ in range(3):
        site.offer()
    await asyncio.sleep(0)
    await site.shadows.stop()
    assert site.outcomes == {"failed": 1, "stopped": 2}
    assert [run.is_closed for run in site.runs] == [True]
    site.offer()
    assert site.outcomes["stopped"] == 3
    assert site.shadows.is_idle


async def test_no_copy_runs_with_a_bound_of_zero() -> None:
    site = ShadowSite(max_running=0)
    site.offer()
    assert site.outcomes == {"stopped": 1}


async def test_a_copy_is_offered_once_and_after_its_request_is_closed() -> None:
    site, steps = ShadowSite(), list[str]()
    caller = principal("a")
    context = RequestContext(principal=caller, request_id="req_1", model="m", endpoint="/v1/completions")
    shadow = Shadow(context, ASKED, 1, None, caller, steps.append)
    close = site.shadows.offer_after(lambda: steps.append("closed"), shadow)
    close()
    close()
    assert steps == ["closed", "target_gone", "closed"]


async def test_the_payer_is_charged_under_an_account_of_the_callers_own() -> None:
    caller, operator = principal("a"), principal("operator")
    context = RequestContext(principal=caller, request_id="req_1", model="m", endpoint="/v1/completions", stream=True)
    own = Shadow(context, ASKED, 1, None, operator, lambda _: None).own_context
    assert (own.principal, own.request_id, own.stream) == (operator, "req_1_shadow", False)
    assert own.fair_account == "a/shadow" != context.fair_account == "a"
    assert own.deadline is not None


def test_a_share_of_requests_is_copied_and_no_other_seed_copies_the_same() -> None:
    ids = [f"req_{number}" for number in range(20_000)]
    one, other = ({each for each in ids if is_shadowed(seed * 32, each, 2_500)} for seed in (b"a", b"b"))
    assert 0.24 < len(one) / len(ids) < 0.26
    assert 0.24 < len(one & other) / len(one) < 0.26
    assert one <= {each for each in ids if is_shadowed(b"a" * 32, each, 5_000)}, "more of it copies the same and more"
    assert all(is_shadowed(b"a" * 32, each, 10_000) for each in ids)
    assert not any(is_shadowed(b"a" * 32, each, 0) for each in ids)
