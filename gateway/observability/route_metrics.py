"""Metrics of routes: the branches that requests took, attempts at targets, and the retries that budgets allowed.

Tenants name and shape routes, so the values of labels are bounded: the first ones are shown, the others together.
"""

from __future__ import annotations

from typing import Literal

from prometheus_client import CollectorRegistry, Counter

MAX_ROUTES = 100
"""The most routes that one gateway process counts separately."""
MAX_BRANCHES = 2_000
"""The most branches of all routes together that are counted separately."""
OTHER = "other"


class _Bounded:
    """A counter with a bounded number of label sets.

    Beyond the bound, labels become `OTHER`, except for the last `num_fixed` labels, which have few values.
    """

    def __init__(self, metric: Counter, max_children: int, num_fixed: int = 0) -> None:
        self._metric = metric
        self._max_children = max_children
        self._num_fixed = num_fixed
        self._own: set[tuple[str, ...]] = set()

    def count(self, *labels: str) -> None:
        free = labels[: len(labels) - self._num_fixed]
        if free not in self._own:
            if len(self._own) < self._max_children:
                self._own.add(free)
            else:
                labels = (*[OTHER] * len(free), *labels[len(free) :])
        self._metric.labels(*labels).inc()


class RouteMetrics:
    """The metrics of routes, as counted in one gateway process. A route is named by its owner's id and its name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._branches = _Bounded(
            Counter(
                "lorikeet_route_branches",
                "Requests that a node of a route sent to a branch, by the route, the path of the node in the document "
                "and the branch. All beyond the first 2,000 of a process have the labels 'other'.",
                ["route", "node", "branch"],
                registry=registry,
            ),
            MAX_BRANCHES,
        )
        self._attempts = _Bounded(
            Counter(
                "lorikeet_route_attempts",
                "Attempts at targets of a route, by outcome: served (the reply is the target's, whatever it is), "
                "refused (an error of the client's own), rejected (an answer that a cascade did not accept), or the "
                "error after which a route may try another target. Routes beyond the first 100 of a process have the "
                "label 'other'.",
                ["route", "outcome"],
                registry=registry,
            ),
            MAX_ROUTES,
            num_fixed=1,
        )
        self._fallbacks = _Bounded(
            Counter(
                "lorikeet_route_fallbacks",
                "Attempts at a route that another target followed, by the error.",
                ["route", "error"],
                registry=registry,
            ),
            MAX_ROUTES,
            num_fixed=1,
        )

        self._retries = _Bounded(
            Counter(
                "lorikeet_route_retries",
                "Further rounds of a route after a wait, by result: allowed, or refused by the budget of the route or "
                "the deadline of the request.",
                ["route", "result"],
                registry=registry,
            ),
            MAX_ROUTES,
            num_fixed=1,
        )
        self._hedges = _Bounded(
            Counter(
                "lorikeet_route_hedges",
                "Requests of a route whose first token was late, by result: refused by the budget of the route, or the "
                "try that answered, first or second.",
                ["route", "result"],
                registry=registry,
            ),
            MAX_ROUTES,
            num_fixed=1,
        )

    def count_branches(self, route: str, edges: list[tuple[str, str]]) -> None:
        """Count the branches that led to one attempt's target. edges: the path of each node, with its branch."""
        for node, branch in edges:
            self._branches.count(route, node, branch)

    def count_attempt(self, route: str, outcome: str, *, is_followed: bool = False) -> None:
        """Count an attempt that has failed or begun to answer.

        is_followed: another target is tried after it. route: the name of the route. outcome: how the attempt ended.
        """
        self._attempts.count(route, outcome)
        if is_followed:
            self._fallbacks.count(route, outcome)

    def count_retry(self, route: str, *, is_allowed: bool) -> None:
        """Count a further round of a fallback, whether or not the retry budget allows it."""
        self._retries.count(route, "allowed" if is_allowed else "refused")

    def count_hedge(self, route: str, result: Literal["refused", "first", "second"]) -> None:
        """Count a request whose first token was late, by the result of its second try."""
        self._hedges.count(route, result)
