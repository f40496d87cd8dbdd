"""Each fault of the drill, with the alerts that have to fire because of the fault."""

from __future__ import annotations

from typing import NamedTuple

from tests.deploy.alerts import engine_faults, experiment_faults, faults
from tests.deploy.alerts.scene import FIRES_WITHIN_S, Fault

ALL_WINDOWS_WITHIN_S = 420.0
"""Seconds within which all alerts of an objective fire: the slowest needs three hours, which are three minutes here."""


class Cause(NamedTuple):
    """A fault, and the alerts that it causes."""

    fault: Fault
    fires: set[tuple[str, str]]
    """The alerts that have to fire."""
    beside: set[str] = frozenset()  # type: ignore[assignment]
    """Alerts that may fire as well, since the fault is their cause, too."""
    within_s: float = FIRES_WITHIN_S
    """The seconds within which all alerts of `fires` have to fire."""


def _in_all_windows(name: str) -> set[tuple[str, str]]:
    return {(name, window) for window in ("1h", "6h", "1d", "3d")}


FAIL = {"RequestsFail", "FirstTokensLate", "LedgerDiffers", "EngineDown"}
NEW_POOL = FAIL | {"PoolDown"}
CAUSES = {
    "gateway_down": Cause(faults.gateway_down, {("GatewayDown", "")}, FAIL),
    "pool_down": Cause(
        faults.pool_down,
        {("PoolDown", ""), ("EngineDown", ""), *_in_all_windows("RequestsFail")},
        FAIL,
        ALL_WINDOWS_WITHIN_S,
    ),
    "usage_not_recorded": Cause(faults.usage_not_recorded, {("UsageNotRecorded", "")}, FAIL),
    "database_away": Cause(
        faults.database_away,
        {("LedgerBehind", ""), ("ContentLost", ""), ("RefusalsLost", "")},
        FAIL | {"ExperimentsBehind"},
    ),
    "ledger_differs": Cause(faults.ledger_differs, {("LedgerDiffers", "")}, set()),
    "queue_long": Cause(
        engine_faults.queue_long,
        {("QueueLong", ""), *_in_all_windows("FirstTokensLate")},
        NEW_POOL,
        ALL_WINDOWS_WITHIN_S,
    ),
    "cache_full": Cause(engine_faults.cache_full, {("CacheFull", "")}, NEW_POOL | {"QueueLong"}),
    "adapters_reloaded": Cause(engine_faults.adapters_reloaded, {("AdaptersReloaded", "")}, NEW_POOL | {"QueueLong"}),
    "usage_dropped": Cause(engine_faults.usage_dropped, {("UsageDropped", "")}, NEW_POOL),
    "route_falls_back": Cause(faults.route_falls_back, {("RouteFallsBack", "")}, NEW_POOL),
    "background_responses_fail": Cause(faults.background_responses_fail, {("BackgroundResponsesFail", "")}, NEW_POOL),
    "experiments_behind": Cause(experiment_faults.experiments_behind, {("ExperimentsBehind", "")}, set()),
    "experiment_events_lost": Cause(
        experiment_faults.experiment_events_lost, {("ExperimentEventsLost", "")}, {"ExperimentsBehind"}
    ),
    "experiment_paused": Cause(
        experiment_faults.experiment_paused, {("ExperimentPaused", "")}, NEW_POOL | {"ExperimentsBehind"}
    ),
    "journal_damaged": Cause(faults.journal_damaged, {("JournalDamaged", "")}, FAIL | {"GatewayDown"}),
    "requests_unbilled": Cause(
        faults.requests_unbilled, {("RequestsUnbilled", "")}, NEW_POOL | {"GatewayDown", "JournalDamaged"}
    ),
}
