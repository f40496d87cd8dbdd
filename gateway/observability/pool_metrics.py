"""The pools of this gateway in numbers, for dashboards and for autoscalers: replicas, and how busy they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.backends.load import load_of
from gateway.backends.pool import Pool
from gateway.domain.pools.scaling import Load


class _Number(msgspec.Struct, frozen=True):
    name: str
    doc: str
    value: Callable[[Load], float]


_NUMBERS = (
    _Number(
        "lorikeet_pool_replicas_ready", "Replicas that take requests of this gateway.", lambda load: load.num_ready
    ),
    _Number(
        "lorikeet_pool_places", "Choices that the ready replicas of the pool compute at once.", lambda load: load.places
    ),
    _Number(
        "lorikeet_pool_requests_running",
        "Choices that the replicas of the pool compute, of all gateways.",
        lambda load: load.num_running + load.num_own,
    ),
    _Number(
        "lorikeet_pool_requests_waiting",
        "Choices that wait at the replicas of the pool, of all gateways.",
        lambda load: load.num_waiting,
    ),
    _Number(
        "lorikeet_pool_requests_held",
        "Requests that wait at this gateway until the pool has a first replica.",
        lambda load: load.num_held,
    ),
    _Number(
        "lorikeet_pool_oldest_wait_seconds",
        "Age of the oldest request of this gateway to the pool that has no token yet.",
        lambda load: load.oldest_wait_s,
    ),
    _Number(
        "lorikeet_pool_kv_cache_share",
        "Share of the KV cache that is in use, on average over the replicas of the pool.",
        lambda load: load.kv_share,
    ),
)


class PoolCollector(Collector):
    """Reads the pools' present numbers at each scrape."""

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        self._pools = pools

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of all pools."""
        families = [GaugeMetricFamily(each.name, each.doc, labels=["model_name"]) for each in _NUMBERS]
        wanted = GaugeMetricFamily(
            "lorikeet_pool_replicas_wanted", "Replicas that the pool is to run.", labels=["model_name"]
        )
        now_s = time.monotonic()
        for pool in self._pools.values():
            load = load_of(pool, now_s)
            wanted.add_metric([pool.name], pool.num_wanted)
            for number, family in zip(_NUMBERS, families, strict=True):
                family.add_metric([pool.name], float(number.value(load)))
        return [wanted, *families]
