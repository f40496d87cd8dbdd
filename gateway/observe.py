"""What an operator sees: Prometheus metrics, with vLLM's names where vLLM has one, and JSON log lines.

Knows what is counted, not when: others call it. Each `Metrics` has a registry of its own.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from gateway.backends.pool import Pool
from gateway.db.usage import UsageEvent

SHARED_METRICS_DIR = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable that makes prometheus_client keep every value in a file of its process, in this folder. It
has to be set before prometheus_client is imported."""

_FIRST_TOKEN_BUCKETS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40)
_LATENCY_BUCKETS_S = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 60, 120, 240, 480)


def empty_shared_metrics(folder: Path) -> None:
    """For whoever starts the processes that count together, before the first of them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)


class Metrics:
    """Counters of this gateway process. model_name labels are base models: adapters are too many for a label.

    shared: the folder that SHARED_METRICS_DIR named when the process began. All that count there render one sum.
    """

    def __init__(self, rendered: CollectorRegistry, shared: Path | None = None) -> None:
        self._rendered = rendered
        registry = rendered
        if shared is not None:
            _forget_dead(shared)
            MultiProcessCollector(rendered, str(shared))  # type: ignore[no-untyped-call]
            registry = CollectorRegistry()
        model = ["model_name"]
        self._prompt_tokens = Counter("vllm:prompt_tokens", "Prompt tokens processed.", model, registry=registry)
        self._generation_tokens = Counter("vllm:generation_tokens", "Tokens generated.", model, registry=registry)
        self._success = Counter(
            "vllm:request_success", "Requests by how they ended.", [*model, "finished_reason"], registry=registry
        )
        self._first_token_s = Histogram(
            "vllm:time_to_first_token_seconds",
            "From submission to the first token.",
            model,
            buckets=_FIRST_TOKEN_BUCKETS_S,
            registry=registry,
        )
        self._latency_s = Histogram(
            "vllm:e2e_request_latency_seconds",
            "From submission to the last token.",
            model,
            buckets=_LATENCY_BUCKETS_S,
            registry=registry,
        )
        self._http_requests = Counter(
            "lorikeet_http_requests", "HTTP requests.", ["method", "route", "status"], registry=registry
        )
        self.usage_written = Counter("lorikeet_usage_events_written", "Usage events in the ledger.", registry=registry)
        self.usage_waiting = Gauge(
            "lorikeet_usage_events_waiting",
            "Usage events yet to be written.",
            registry=registry,
            multiprocess_mode="livesum",
        )

    def watch(self, pools: Sequence[Pool]) -> None:
        """Export the engines' own numbers, as of their last heartbeat."""
        self._rendered.register(_EngineCollector(pools))

    def count_usage(self, event: UsageEvent) -> None:
        base = event.model.partition(":")[0]
        self._prompt_tokens.labels(base).inc(event.prompt_tokens)
        self._generation_tokens.labels(base).inc(event.completion_tokens)
        self._success.labels(base, event.finish_reason).inc()
        if event.ttft_ms is not None:
            self._first_token_s.labels(base).observe(event.ttft_ms / 1e3)
        if event.latency_ms is not None:
            self._latency_s.labels(base).observe(event.latency_ms / 1e3)

    def count_http(self, method: str, route: str, status: int) -> None:
        """route: the pattern that matched, never the path as the client wrote it."""
        self._http_requests.labels(method, route, str(status)).inc()

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self._rendered)


def _forget_dead(shared: Path) -> None:
    """What a process that ended counted still counts, but nothing waits in it any more."""
    for file in shared.glob("gauge_live*_*.db"):
        if not Path("/proc", file.stem.rpartition("_")[2]).exists():
            file.unlink(missing_ok=True)


class _EngineCollector(Collector):
    def __init__(self, pools: Sequence[Pool]) -> None:
        self._pools = pools

    def collect(self) -> Iterable[Metric]:
        labels = ["model_name", "engine"]
        up = GaugeMetricFamily("lorikeet_engine_up", "Whether the engine is ready.", labels=labels)
        running = GaugeMetricFamily("vllm:num_requests_running", "Requests in the batch.", labels=labels)
        waiting = GaugeMetricFamily("vllm:num_requests_waiting", "Requests that wait.", labels=labels)
        used = GaugeMetricFamily("vllm:kv_cache_usage_perc", "KV cache in use; 1 is all of it.", labels=labels)
        preemptions = CounterMetricFamily("vllm:num_preemptions", "Preemptions.", labels=labels)
        loads = CounterMetricFamily("lorikeet_adapter_loads", "Adapters brought onto the device.", labels=labels)
        dropped = CounterMetricFamily("lorikeet_usage_dropped", "Usage the engine could not keep.", labels=labels)
        for pool in self._pools:
            for index, backend in enumerate(pool.backends):
                health, key = backend.health(), [pool.name, str(index)]
                up.add_metric(key, float(health.ready))
                if (stats := health.stats) is None:
                    continue
                running.add_metric(key, stats.num_running)
                waiting.add_metric(key, stats.num_waiting)
                used.add_metric(key, stats.kv_blocks_used / max(1, stats.kv_blocks_total))
                preemptions.add_metric(key, stats.preemptions_total)
                loads.add_metric(key, stats.adapter_loads_total)
                dropped.add_metric(key, stats.dropped_usage_total)
        return [up, running, waiting, used, preemptions, loads, dropped]


def configure_logging(level: str) -> None:
    """One JSON object per line on standard error, for structlog and for the standard library's loggers alike."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
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
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(number),
        cache_logger_on_first_use=True,
    )
