"""Tenants that make many routes cannot make the metrics grow without bound."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from gateway.observability.route_metrics import MAX_BRANCHES, MAX_ROUTES, OTHER, RouteMetrics


def test_routes_and_branches_beyond_the_first_ones_are_counted_together() -> None:
    registry = CollectorRegistry()
    metrics, num_more = RouteMetrics(registry), 7
    for number in range(MAX_ROUTES + num_more):
        metrics.count_attempt(f"proj/{number}", "failed", is_followed=True)
    for number in range(MAX_BRANCHES + num_more):
        metrics.count_branches(f"proj/{number}", [("root.fallback", "nodes[0]")])
    metrics.count_attempt("proj/0", "served")
    named = {"route": OTHER, "node": OTHER, "branch": OTHER}
    assert registry.get_sample_value("lorikeet_route_branches_total", named) == num_more
    for name, label in (("attempts", "outcome"), ("fallbacks", "error")):
        value = registry.get_sample_value(f"lorikeet_route_{name}_total", {"route": OTHER, label: "failed"})
        assert value == num_more
    of_first = {"route": "proj/0", "outcome": "served"}
    assert registry.get_sample_value("lorikeet_route_attempts_total", of_first) == 1
