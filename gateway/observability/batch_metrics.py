"""Metrics of batches: how they end, and what becomes of their lines."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter


class BatchMetrics:
    """The metrics of batches, as counted in one gateway process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ended = Counter(
            "lorikeet_batches_ended",
            "Batches that have ended, by status: completed, failed, expired or cancelled.",
            ["status"],
            registry=registry,
        )
        self._lines = Counter(
            "lorikeet_batch_lines",
            "Lines of batches, by outcome: completed, failed (an error is the result), or begun_again (after a fault "
            "of the server).",
            ["outcome"],
            registry=registry,
        )

    def ended(self, status: str) -> None:
        """Count a batch that has ended."""
        self._ended.labels(status).inc()

    def lines(self, outcome: str, number: int) -> None:
        """Count lines of batches that had an outcome."""
        if number:
            self._lines.labels(outcome).inc(number)
