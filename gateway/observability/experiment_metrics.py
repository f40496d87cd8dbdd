"""Metrics of the sums of experiments, which every gateway reads from the same tables."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from gateway.db.experiments.events import WaitingEvents


class ExperimentMetrics:
    """Metrics of experiments: the delay of their sums, missing events, and experiments that guardrails paused."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._waiting = Gauge(
            "lorikeet_experiment_events_waiting",
            "Requests and votes that are not in the results of experiments yet.",
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._lag = Gauge(
            "lorikeet_experiment_lag_seconds",
            "Age in seconds of the oldest request or vote that is not in the results of experiments yet; 0 if there is "
            "none.",
            registry=registry,
            multiprocess_mode="livemax",
        )
        self.paused = Counter(
            "lorikeet_experiments_paused", "Experiments that a guardrail paused by itself.", registry=registry
        )
        self.dropped = Counter(
            "lorikeet_experiment_events_dropped",
            "Requests and votes that could not be added to the results of an experiment, and are missing there.",
            registry=registry,
        )

    def observe(self, waiting: WaitingEvents) -> None:
        """Set the gauges of waiting events and of the age of the oldest one."""
        self._waiting.set(waiting.num)
        self._lag.set(waiting.lag_s)
