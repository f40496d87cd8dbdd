"""Plans for requests by a policy: reads the present facts about each target, and walks the document.

The run of a request and `explain` both ask here, so that they see the same plan where they have the same facts.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import msgspec

from gateway.domain.billing.pricing import WHOLE_BASIS_POINTS
from gateway.domain.limits.work import Price, Prices
from gateway.domain.pools.provider_key import KeyUse
from gateway.domain.routing.policy.document import Document, copy_targets_of, targets_of
from gateway.domain.routing.policy.facts import Facts, TargetFacts
from gateway.domain.routing.policy.plan import Plan
from gateway.domain.routing.policy.walk import walk
from gateway.routing.experiments import RunningExperiment
from gateway.routing.measured import MeasuredSpeeds
from gateway.routing.policies import RoutedPolicy
from gateway.routing.resolve import Found, Resolver
from gateway.routing.route import Route

_GONE = TargetFacts(is_usable=False)

MISSING_S = 1.0
"""Seconds for which an unknown target of a project is not looked up again: each look-up is a query."""
MAX_MISSING = 10_000


class Planned(msgspec.Struct, frozen=True):
    """A plan, and the targets that it refers to."""

    plan: Plan
    facts: Facts
    found: dict[str, Route | RunningExperiment]
    """The route or the experiment of each usable target, by its model string."""


async def always_pool_key(project_id: str, pool: str) -> KeyUse:
    """Return "pool": requests are sent with the pool's own key. Both arguments are ignored."""
    return "pool"


class Planner:
    """Makes the plans of one gateway process."""

    def __init__(
        self,
        resolver: Resolver,
        prices: Prices,
        is_ready: Callable[[str], bool],
        measured: MeasuredSpeeds | None = None,
        *,
        key_use: Callable[[str, str], Awaitable[KeyUse]] = always_pool_key,
    ) -> None:
        """Make the planner.

        measured: the speeds that were measured before; None: there are none.
        is_ready: tells whether a replica of the pool of this name takes requests.
        key_use: tells which key a project's requests to the pool of this name are sent with.
        """
        self._key_use = key_use
        self.measured = measured or MeasuredSpeeds()
        """The speeds that runs of routes have measured here."""
        self._resolver = resolver
        self._prices = prices
        self._is_ready = is_ready
        self._missing_until_s: dict[tuple[str, str], float] = {}

    async def plan(self, project_id: str, organization_id: str, document: Document, facts: Facts) -> Planned:
        """Return the plan of a policy for a request of a project.

        facts: the facts of the request, without targets' facts.

        Raises Overloaded: when the database cannot be asked.
        """
        found: dict[str, Route | RunningExperiment] = {}
        targets = {}
        answering = targets_of(document)
        for target in answering | copy_targets_of(document):
            each = await self._look_up(project_id, organization_id, target)
            route = each.control if isinstance(each, RunningExperiment) else each
            if isinstance(each, RoutedPolicy) or each is None or not isinstance(route, Route):
                targets[target] = _GONE
                continue
            if isinstance(each, RunningExperiment) and target not in answering:
                targets[target] = _GONE  # copies are no part of an experiment
                continue
            found[target] = each
            use = await self._key_use(project_id, route.base)
            targets[target] = self._facts_of(project_id, organization_id, route, facts.tier, use)
        facts = msgspec.structs.replace(facts, targets=targets)
        return Planned(walk(document, facts), facts, found)

    async def find(self, project_id: str, organization_id: str, model: str) -> Found | None:
        """Return the target of a project's model string, without regard to keys' allow-lists; None for an unknown one.

        Raises Overloaded: when the database cannot be asked.
        """
        return await self._resolver.look_up(project_id, organization_id, model)

    async def unusable(self, project_id: str, organization_id: str, document: Document) -> tuple[str, str] | None:
        """Return the path and the model string of the first target that the project may not use, or that is a route.

        Raises Overloaded: when the database cannot be asked.
        """
        for target, path in targets_of(document).items():
            found = await self._resolver.look_up(project_id, organization_id, target)
            if found is None or isinstance(found, RoutedPolicy):
                return path, target
        for target, path in copy_targets_of(document).items():
            if not isinstance(await self._resolver.look_up(project_id, organization_id, target), Route):
                return path, target
        return None

    async def _look_up(self, project_id: str, organization_id: str, target: str) -> Found | None:
        """Return the target of a model string; None where there is no such model, or was none a moment ago."""
        key, now_s = (project_id, target), time.monotonic()
        if self._missing_until_s.get(key, 0.0) > now_s:
            return None
        found = await self._resolver.look_up(project_id, organization_id, target)
        if found is None:
            if len(self._missing_until_s) >= MAX_MISSING:
                self._missing_until_s.clear()
            self._missing_until_s[key] = now_s + MISSING_S
        return found

    def _facts_of(self, project_id: str, organization_id: str, route: Route, tier: str, use: KeyUse) -> TargetFacts:
        price = Price()
        if use == "pool":
            price = self._prices.highest_price(organization_id, project_id, route.model, tier, time.time_ns())
        now_s = time.monotonic()
        speed = self.measured.find(project_id, route.model, now_s)
        return TargetFacts(
            is_ready=self._is_ready(route.base) and use != "missing",
            input_nanos=price.input // WHOLE_BASIS_POINTS,
            output_nanos=price.output // WHOLE_BASIS_POINTS,
            first_token_ms=None if speed is None else speed.first_token_ms,
            late_ms=None if speed is None else speed.late_ms(now_s),
            token_ms=None if speed is None else speed.token_ms,
        )
