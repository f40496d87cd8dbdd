"""How the journal fares, what was recovered from others, and what does not add up."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class JournalMetrics:
    """Of one gateway process, but for unbilled and difference, which every gateway reads from the same tables."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, doc: str, mode: str, *labels: str) -> Gauge:
            return Gauge(name, doc, labels, registry=registry, multiprocess_mode=mode)  # type: ignore[arg-type]

        self.bytes = gauge(
            "lorikeet_journal_bytes", "Usage in the journal that the ledger does not have yet.", "livesum"
        )
        self.writable = gauge("lorikeet_journal_writable", "0 while the journal cannot be written.", "livemin")
        self.recovered = Counter(
            "lorikeet_usage_recovered",
            "Usage events found in journals of gateways that were gone, by what was known of the request: its end, "
            "what its client had seen, or that it was sent.",
            ["known"],
            registry=registry,
        )
        self.damaged = Counter(
            "lorikeet_journal_damaged_segments",
            "Segments of journals with bytes before their end that are no records; each is kept aside.",
            registry=registry,
        )
        self.unbilled = gauge(
            "lorikeet_unbilled_requests",
            "Requests whose gateway is lost with its journal, and of which no engine could tell, until they are "
            "written off. Every gateway shows those of all gateways: take max(), not sum().",
            "livemax",
        )
        self.difference = gauge(
            "lorikeet_reconciliation_difference_tokens",
            "Tokens that an engine counted in requests that have ended, less those that the ledger took of it; "
            "0 while nothing is on its way.",
            "livemax",
            "model_name",
            "engine",
        )
