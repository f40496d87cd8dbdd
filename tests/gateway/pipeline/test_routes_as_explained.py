"""A request by a route goes as `explain` says: random policies and requests, each of whose attempts ends at random."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, cast

import msgspec
from prometheus_client import CollectorRegistry

from engine.protocol import SamplingParams, TokenLogprobs, Usage
from gateway.backends.generation import Token
from gateway.domain.errors import (
    ENGINE_UNAVAILABLE,
    BackendFailed,
    DeadlinePassed,
    GatewayError,
    InvalidRequest,
    LimitReached,
    ModelNotFound,
    Overloaded,
)
from gateway.domain.limits.work import Price
from gateway.domain.routing.policy.checks import read_document
from gateway.domain.routing.policy.document import Document
from gateway.domain.routing.policy.facts import Facts
from gateway.domain.routing.policy.plan import Plan, Step
from gateway.domain.tenancy.principal import Principal
from gateway.observability.route_metrics import RouteMetrics
from gateway.pipeline.collected import Answer, Collected
from gateway.pipeline.context import RequestContext
from gateway.pipeline.items.first_item import TooSlow
from gateway.pipeline.requests import FieldNames, TextRequest
from gateway.pipeline.routes.routed import RoutedRequests
from gateway.pipeline.routes.steps import Target
from gateway.pipeline.routes.trial import Trial
from gateway.pipeline.run import Run
from gateway.routing.planner import Planner
from gateway.routing.policies import RoutedPolicy
from gateway.routing.route import OwnName, Route
from tests.gateway.domain.routing.test_policy import MODELS, NUM_DOCUMENTS, random_node

PRINCIPAL = Principal("org", "proj", "key_1", frozenset({"inference"}))
NAMES = FieldNames(prompt="prompt")
LONG_S = 0.1
"""The seconds to a request's deadline, which end before every wait, so that no further round begins."""

ERRORS: dict[str, Callable[[], GatewayError]] = {
    "timeout": TooSlow,
    "unavailable": lambda: Overloaded("nobody", code=ENGINE_UNAVAILABLE),
    "overloaded": lambda: Overloaded("full"),
    "rate_limited": lambda: LimitReached("too much"),
    "failed": lambda: BackendFailed("broken"),
    "context_length": lambda: InvalidRequest("too long", code="context_length_exceeded"),
    "refused": lambda: InvalidRequest("wrong"),
}
ANSWERED, REJECTED = "answered", "rejected"
ACCEPTED = Answer('{"a": "aaa"}', [Token(1, 0, TokenLogprobs(-0.1, [], []))], "stop")


class Resolver:
    """A fake resolver that knows some of the models."""

    def __init__(self, known: set[str]) -> None:
        self._known = known

    async def look_up(self, project_id: str, organization_id: str, model: str) -> Route | None:
        return Route(model, model, model) if model in self._known else None


class Prices:
    """Prices that differ by model."""

    def highest_price(self, organization_id: str, project_id: str, model: str, tier: str, instant_ns: int) -> Price:
        return Price(input=ord(model[0]) * 10_000_000, output=ord(model[-1]) * 10_000_000)


class Meter:
    """A fake meter that reports each attempt as sent."""

    def has_sent(self, request_id: str, attempts: range) -> bool:
        return True

    def supersede(self, request_id: str, attempts: range) -> None:
        """Ignore the attempts, since no usage is recorded."""

    def outrun(self, request_id: str, attempts: range, by: range) -> None:
        """Ignore the attempts, since no usage is recorded."""


class FakeRun:
    """A fake run whose attempt ends with a given outcome."""

    def __init__(self, outcome: str, ended: list[str]) -> None:
        self.outcome, self.instant_ns, self.headers = outcome, 1, ()
        self.details = self.call = None
        self._ended = ended

    def close(self) -> None:
        self._ended.append("closed")

    def give_back(self) -> None:
        self._ended.append("given back")

    def serves(self) -> None:
        self._ended.append("serves")

    def serve_whole(self) -> None:
        """Ignore the call, since the answer is read later."""

    async def begin(self, bound_s: float | None, is_followed: Callable[[GatewayError], bool], give_up: Any) -> None:
        if self.outcome in ERRORS:
            raise ERRORS[self.outcome]()

    async def begin_whole(self, bound_s: float | None, is_followed: Any, give_up: Any) -> Collected:
        await self.begin(bound_s, is_followed, give_up)
        answer = Answer(text="no", finish_reason="stop") if self.outcome == REJECTED else ACCEPTED
        return Collected([answer], [], Usage(1, 1))


def facts_of_explain(asked: list[TextRequest], user: str | None, plan_name: str | None, **fields: Any) -> Facts:
    """Return the facts that the admin API's `explain` derives from a body that describes the same request."""
    (first, *_) = asked
    return Facts(
        user=user,
        key_id=PRINCIPAL.api_key_id,
        metadata={"plan": plan_name},
        num_prompts=len(asked),
        prompt_tokens=sum(len(cast("list[int]", each.prompt)) for each in asked),
        max_tokens=first.max_tokens or 0,
        n=sum(each.n for each in asked),
        tier=first.service_tier,
        **fields,
    )


def followed(plan: Plan, outcomes: list[str]) -> tuple[list[Step], str]:
    """Return the steps that a plan takes for these outcomes, and the last step's outcome."""
    number, tried, ends = 0, list[Step](), iter(outcomes)
    while True:
        step, outcome = plan.steps[number], next(ends)
        tried.append(step)
        if outcome == REJECTED and step.accept is None:
            outcome = ANSWERED
        if outcome != REJECTED and outcome in ERRORS and not step.then:
            return tried, ANSWERED  # the run begins when its reply is read
        following = step.then.get(cast("Any", outcome))
        if following is None or plan.steps[following].wait_ms:
            return tried, outcome
        number = following


async def test_random_requests_go_as_explained() -> None:
    draw, num_several, num_made = random.Random(11), 0, 0
    while num_made < NUM_DOCUMENTS:
        try:
            document = read_document(msgspec.json.encode({"root": random_node(draw, 1)}))
        except InvalidRequest:
            continue
        if document.root.target is not None:
            continue  # there is nothing to decide
        num_made += 1
        num_several += len(await one_request(draw, document, number=num_made)) > 1
        if num_made % 100 == 0:
            await asyncio.sleep(0)
    assert num_several > NUM_DOCUMENTS // 10


async def one_request(draw: random.Random, document: Document, *, number: int) -> list[str]:
    """Run one request and check it against its explanation; return the targets that were tried."""
    known = {name for name in MODELS if draw.random() < 0.85}
    ready = {name for name in MODELS if draw.random() < 0.85}
    planner = Planner(cast("Any", Resolver(known)), Prices(), ready.__contains__)
    for name in MODELS:
        if draw.random() < 0.5:
            planner.measured.add("proj", name, asyncio.get_running_loop().time(), first_token_ms=len(name), token_ms=1)
    user, plan_name = draw.choice((None, "ann")), draw.choice((None, "x", "z"))
    asked = [
        TextRequest(
            prompt=[1] * draw.randint(1, 20),
            names=NAMES,
            sampling=SamplingParams(max_tokens=0),
            max_tokens=9,
            n=draw.choice((1, 2)),
            service_tier=draw.choice(("default", "flex")),
        )
    ] * draw.choice((1, 1, 2))
    units = {"user": user, "metadata.plan": plan_name}
    deadline = asyncio.get_running_loop().time() + LONG_S
    context = RequestContext(
        principal=PRINCIPAL,
        request_id=f"req_{number}",
        model="route",
        endpoint="/v1/completions",
        unit=units.get,
        deadline=deadline,
    )
    policy = RoutedPolicy(f"route_{number % 7}", "route", 1, document, OwnName("proj", cast("Any", None)))
    told_facts = facts_of_explain(asked, user, plan_name, route_id=policy.id, request_id=context.request_id)
    told = (await planner.plan("proj", "org", document, told_facts)).plan

    outcomes = [draw.choice((*ERRORS, *ERRORS, ANSWERED, REJECTED)) for _ in range(70)]
    tried, ended, left = list[str](), list[str](), iter(outcomes)

    async def try_at(target: Target, trial: Trial) -> Run:
        assert isinstance(target, Route)
        tried.append(target.model)
        return cast("Run", FakeRun(next(left), ended))

    copied = list[str]()
    routed = RoutedRequests(
        planner,
        cast("Any", Meter()),
        RouteMetrics(CollectorRegistry()),
        lambda _, __, ___, placed: copied.append(placed.route.model if placed.route else ""),
    )
    try:
        run = await routed.complete(context, policy, asked, try_at)
        end = ANSWERED
    except DeadlinePassed:
        return []  # this machine had something else to do meanwhile
    except ModelNotFound:
        assert not told.steps and not tried
        return []
    except GatewayError as error:
        (end,) = (name for name, make in ERRORS.items() if (type(make()), make().code) == (type(error), error.code))
    steps, expected_end = followed(told, outcomes)
    assert (tried, end) == ([step.target for step in steps], expected_end)
    assert ended.count("given back") >= len(tried) - 1, "what is followed gives back what it had reserved"
    if end == ANSWERED:
        headers = dict(run.headers)
        assert headers["x-lorikeet-attempts"] == str(len(tried))
        assert headers["x-lorikeet-target"] == tried[-1]
        assert copied == [copy.target for copy in steps[-1].copies]
    else:
        assert copied == []
    return tried
