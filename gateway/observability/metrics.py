"""Metrics and logs for operators.

The Prometheus metrics are put together from those of requests and engines; logs are lines of JSON.

Knows what is counted, not when: others call it. Each `Metrics` has a registry of its own.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import msgspec
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from engine.protocol import Usage
from gateway.db.ledger.usage import UsageEvent
from gateway.observability.batch_metrics import BatchMetrics
from gateway.observability.engine_metrics import EngineCollector
from gateway.observability.experiment_metrics import ExperimentMetrics
from gateway.observability.journal_metrics import JournalMetrics
from gateway.observability.lossy_log import LossyLog
from gateway.observability.pool_metrics import PoolCollector
from gateway.observability.request_metrics import RequestMetrics
from gateway.observability.route_metrics import RouteMetrics

if TYPE_CHECKING:  # `serve` merges the gateways' metrics without the libraries of a pool, such as tokenizers
    from gateway.backends.pool import Pool

SHARED_METRICS_DIR = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable that names the folder in which prometheus_client keeps each process's values, in a file
each.

It has to be set before prometheus_client is imported.
"""


def empty_shared_metrics(folder: Path) -> None:
    """Empty the folder in which processes share their counts. Call this before the first of them starts."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)


class Metrics:
    """Everything that this gateway process counts.

    shared: the folder that SHARED_METRICS_DIR named when the process began; the counts of all its processes are summed.
    """

    def __init__(self, rendered: CollectorRegistry, shared: Path | None = None) -> None:
        self._rendered = rendered
        registry = rendered
        if shared is not None:
            _forget_dead(shared)
            MultiProcessCollector(rendered, str(shared))  # type: ignore[no-untyped-call]
            registry = CollectorRegistry()
        self._requests = RequestMetrics(registry)
        self.journal = JournalMetrics(registry, rendered)
        self.experiments = ExperimentMetrics(registry)
        self.routes = RouteMetrics(registry)
        self.batches = BatchMetrics(registry)
        self._http_requests = Counter(
            "lorikeet_http_requests",
            "HTTP requests answered, by method, route and status.",
            ["method", "route", "status"],
            registry=registry,
        )
        self._streams_cut = Counter(
            "lorikeet_streams_cut",
            "Streamed replies that an error of the server ended after they had begun with status 200, by route.",
            ["route"],
            registry=registry,
        )
        self._http_children: dict[tuple[str, str, int], Counter] = {}  # `labels` looks at its arguments anew each time
        self.content_lost = Counter(
            "lorikeet_content_lost",
            "Pieces of content that could not be stored: replies for an Idempotency-Key, stored completions, logged "
            "content.",
            ["kind"],
            registry=registry,
        )
        self.refusals_lost = Counter(
            "lorikeet_refusals_lost",
            "Refused requests missing from the list of refusals, because of too many at once or a failed write.",
            registry=registry,
        )
        self.experiment_notes_lost = Counter(
            "lorikeet_experiment_notes_lost",
            "Units, refusals and unanalysed requests of experiments that were not counted: too many at once, or a "
            "database that was away.",
            registry=registry,
        )
        self.shadows = Counter(
            "lorikeet_shadows",
            "Copies of requests for shadow arms of experiments and for routes, by what became of them: answered, "
            "failed, or the reason why the copy did not run.",
            ["outcome"],
            registry=registry,
        )
        self.background_responses = Counter(
            "lorikeet_background_responses",
            "Turns of gateways at background responses, by what became of each: completed, incomplete, failed, "
            "cancelled, put_back to be tried again, or left or lost to another gateway.",
            ["outcome"],
            registry=registry,
        )
        self.spans = Counter(
            "lorikeet_trace_spans",
            "Spans of traces, by what became of them: sent, or dropped for want of room (no_room) or because the "
            "collector did not take them (not_taken).",
            ["outcome"],
            registry=registry,
        )
        self.usage_written = Counter(
            "lorikeet_usage_events_written", "Usage events written to the ledger.", registry=registry
        )
        self.usage_waiting = Gauge(
            "lorikeet_usage_events_waiting",
            "Usage events waiting to be written to the ledger.",
            registry=registry,
            multiprocess_mode="livesum",
        )

    def watch(self, pools: Mapping[str, Pool]) -> None:
        """Export the numbers of the pools, and of their engines as of their last heartbeats."""
        self._rendered.register(EngineCollector(pools))
        self._rendered.register(PoolCollector(pools))

    def count_usage(self, requests: Sequence[tuple[UsageEvent, Usage]]) -> None:
        """Count requests whose usage is in the ledger now."""
        self._requests.count(requests)

    def count_http(self, method: str, route: str, status: int) -> None:
        """Count a request over HTTP. route: the pattern that matched, never the path as the client wrote it."""
        of_kind = self._http_children.get((method, route, status))
        if of_kind is None:
            of_kind = self._http_requests.labels(method, route, str(status))
            self._http_children[method, route, status] = of_kind
        of_kind.inc()

    def count_cut_stream(self, route: str) -> None:
        """Count a streamed reply that an error ended after its head was sent with status 200."""
        self._streams_cut.labels(route).inc()

    def render(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self._rendered)


def _forget_dead(shared: Path) -> None:
    """Remove the gauges of processes that have ended. Their counters still count."""
    for file in shared.glob("gauge_live*_*.db"):
        if not Path("/proc", file.stem.rpartition("_")[2]).exists():
            file.unlink(missing_ok=True)


def configure_logging(level: str) -> None:
    """Write one JSON object per line on standard error, for structlog and the standard library's loggers alike."""
    shared: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    number = logging.getLevelNamesMapping()[level.upper()]
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
            foreign_pre_chain=shared,
        )
    )
    logging.basicConfig(level=number, handlers=[handler], force=True)
    for client in ("httpx", "httpcore"):  # they write whole URLs, and paths and queries may be secrets
        logging.getLogger(client).setLevel(max(number, logging.WARNING))
    # Every request writes a line of ours: the standard library's way would cost it five times more.
    structlog.configure(
        processors=[*shared, _render],
        logger_factory=structlog.BytesLoggerFactory(cast(BinaryIO, LossyLog(sys.stderr.buffer))),
        wrapper_class=structlog.make_filtering_bound_logger(number),
        cache_logger_on_first_use=True,
    )


def _render(logger: object, method: str, fields: MutableMapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(fields, enc_hook=repr)
    except UnicodeEncodeError:  # a lone surrogate, as names of files may hold
        return json.dumps(fields, default=repr).encode()
