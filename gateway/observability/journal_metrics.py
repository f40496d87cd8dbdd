"""Metrics of the usage journal: its size and health, usage recovered from other journals, and counts that differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class Differences(Collector):
    """The difference between the counts of each engine and of the ledger, as of the last `set`.

    This is a collector of its own, since processes that count in shared files can never remove a series from them.
    """

    def __init__(self) -> None:
        self._tokens: Mapping[tuple[str, str], int] = {}

    def set(self, tokens: Mapping[tuple[str, str], int]) -> None:
        """Replace all differences. tokens: the difference by the name of the model and the id of the replica."""
        self._tokens = tokens

    def collect(self) -> Iterable[Metric]:
        """Return the differences that the last reconciliation found."""
        family = GaugeMetricFamily(
            "lorikeet_reconciliation_difference_tokens",
            "Tokens of ended requests that an engine has counted and the ledger lacks, at least, beyond what may be on "
            "its way; negative for tokens that the ledger has and the engine lacks. From the last two minutes.",
            labels=["model_name", "engine"],
        )
        for (model, replica_id), tokens in self._tokens.items():
            family.add_metric([model, replica_id], tokens)
        return [family]


class JournalMetrics:
    """Metrics of one gateway process's journal. All gateways read `unbilled` and `difference` from the same tables."""

    def __init__(self, registry: CollectorRegistry, rendered: CollectorRegistry | None = None) -> None:
        """Register the metrics.

        rendered: the registry of this process alone, where `registry` has values that processes share.
        """

        def gauge(name: str, doc: str, mode: str) -> Gauge:
            return Gauge(name, doc, registry=registry, multiprocess_mode=mode)  # type: ignore[arg-type]

        self.bytes = gauge(
            "lorikeet_journal_bytes",
            "Bytes of usage in the gateway's journal that the ledger does not have yet.",
            "livesum",
        )
        self.writable = gauge(
            "lorikeet_journal_writable",
            "State of the gateway's journal: 1 if it can be written, 0 if not (new requests are then refused).",
            "livemin",
        )
        self.recovered = Counter(
            "lorikeet_usage_recovered",
            "Usage events recovered from the journals of gateways that had died, by what the journal knew of the "
            "request: its end, the tokens its client had seen, or only that it was sent.",
            ["known"],
            registry=registry,
        )
        self.damaged = Counter(
            "lorikeet_journal_damaged_segments",
            "Journal files with unreadable records before the end of the file; each file is moved aside.",
            registry=registry,
        )
        self.unbilled = gauge(
            "lorikeet_unbilled_requests",
            "Requests not billed because the gateway was lost with its journal and no engine reported usage, until "
            "they are written off. Every gateway shows the number for all gateways: take max(), not sum().",
            "livemax",
        )
        self.difference = Differences()
        (rendered or registry).register(self.difference)
