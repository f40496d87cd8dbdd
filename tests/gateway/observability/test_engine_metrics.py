"""All statistics in an engine's heartbeat reach Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from engine.protocol import STEP_BUCKETS_S, EngineStats, TenantStats
from gateway.backends.base import Health, Model
from gateway.backends.pool import ManagedBackend, Pool, PoolRevision, Replica
from gateway.observability.engine_metrics import EngineCollector

WITHOUT_A_METRIC = {"resident_adapters", "waiting_adapters"}  # digests, which are too many for a label


class Transcript:
    """A fake backend with given heartbeats and nothing else."""

    capabilities = None

    def __init__(self, stats: EngineStats | None) -> None:
        self._stats = stats

    def health(self) -> Health:
        return Health(ready=False, detail="", stats=self._stats)

    def watch(self, changed: Callable[[], None], has_other: Callable[[], bool]) -> None:
        """Ignore the watcher, since this backend never changes."""


def pool(**replicas: EngineStats | None) -> Pool:
    """Return a pool of replicas with these last heartbeats, by the replicas' ids."""
    made = [Replica(id, cast("ManagedBackend", Transcript(stats))) for id, stats in replicas.items()]
    return Pool("tiny", PoolRevision("tiny", cast("Model", None), made), created=0)


def samples(stats: EngineStats) -> list[tuple[tuple[str, str], float]]:
    """Return the samples of the metrics that have these statistics, each with its name and bucket."""
    metrics = EngineCollector({"tiny": pool(replica_1=stats)}).collect()
    return [((s.name, s.labels.get("le", "")), s.value) for metric in metrics for s in metric.samples]


def test_an_engines_numbers_are_those_of_its_last_heartbeat() -> None:
    registry = CollectorRegistry()
    stats = EngineStats(
        kv_blocks_used=3, kv_blocks_total=12, prefix_hit_tokens_total=48, tenants={"t": TenantStats(2, 1, 7.5)}
    )
    registry.register(EngineCollector({"tiny": pool(replica_1=stats)}))
    engine = {"model_name": "tiny", "engine": "replica_1"}
    assert registry.get_sample_value("vllm:kv_cache_usage_perc", engine) == 0.25
    assert registry.get_sample_value("vllm:prefix_cache_hits_total", engine) == 48
    assert registry.get_sample_value("lorikeet_tenant_service", {**engine, "tenant": "t"}) == 7.5


@pytest.mark.parametrize("field", [f for f in EngineStats.__struct_fields__ if f not in WITHOUT_A_METRIC])
def test_every_number_of_a_heartbeat_has_its_metric(field: str) -> None:
    before = EngineStats(kv_blocks_used=1, kv_blocks_total=2, step_counts=[0] * (len(STEP_BUCKETS_S) + 1))
    values: dict[str, object] = {"tenants": {"t": TenantStats(1, 2, 3.0)}, "step_counts": [1] * len(before.step_counts)}
    after = msgspec.structs.replace(before, **{field: values.get(field, 7)})
    assert set(samples(after)) - set(samples(before)), field


def test_the_times_of_steps_are_a_histogram() -> None:
    counts = [0] * (len(STEP_BUCKETS_S) + 1)
    counts[0], counts[2], counts[-1] = 5, 3, 2
    values = dict(samples(EngineStats(step_counts=counts, step_seconds_total=30.5)))
    name = "lorikeet_engine_step_seconds"
    below = {bound: values[f"{name}_bucket", str(bound)] for bound in (*STEP_BUCKETS_S, "+Inf")}
    assert (below[STEP_BUCKETS_S[0]], below[STEP_BUCKETS_S[1]], below[STEP_BUCKETS_S[2]]) == (5, 5, 8)
    assert (below[STEP_BUCKETS_S[-1]], below["+Inf"]) == (8, 10)
    assert (values[f"{name}_count", ""], values[f"{name}_sum", ""]) == (10, 30.5)


def test_a_disconnected_engine_exports_only_that_it_is_down() -> None:
    registry = CollectorRegistry()
    registry.register(EngineCollector({"tiny": pool(replica_1=None)}))
    assert [sample.value for metric in registry.collect() for sample in metric.samples] == [0.0]


def test_a_replica_keeps_its_series_when_another_one_goes_which_has_none_any_more() -> None:
    registry, tiny = (
        CollectorRegistry(),
        pool(replica_1=EngineStats(num_running=1), replica_2=EngineStats(num_running=2)),
    )
    registry.register(EngineCollector({"tiny": tiny}))

    def running(replica_id: str) -> float | None:
        return registry.get_sample_value("vllm:num_requests_running", {"model_name": "tiny", "engine": replica_id})

    assert (running("replica_1"), running("replica_2")) == (1, 2)
    tiny.serving.remove("replica_1")
    assert (running("replica_1"), running("replica_2")) == (None, 2)
