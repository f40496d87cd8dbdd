"""Gateways that count together: any of them renders the sum of all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from gateway.observability.metrics import SHARED_METRICS_DIR, empty_shared_metrics

GATEWAY = """
import os, pathlib, sys
from prometheus_client import CollectorRegistry
from gateway.observability.metrics import SHARED_METRICS_DIR, Metrics
metrics = Metrics(CollectorRegistry(), pathlib.Path(os.environ[SHARED_METRICS_DIR]))
metrics.count_http("GET", "/", 200)
metrics.usage_waiting.set(int(sys.argv[1]))
print(metrics.render().decode(), "# end", flush=True)
sys.stdin.readline()
"""


def start(folder: Path, num_waiting: int) -> tuple[subprocess.Popen[str], dict[str, float]]:
    """Start a process that counts one request and keeps running. Return it, and the metrics that it renders."""
    process = subprocess.Popen(
        [sys.executable, "-c", GATEWAY, str(num_waiting)],
        env=os.environ | {SHARED_METRICS_DIR: str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    text = "".join(iter(process.stdout.readline, " # end\n"))
    return process, {s.name: s.value for family in text_string_to_metric_families(text) for s in family.samples}


def test_counters_outlive_their_process_and_gauges_do_not(tmp_path: Path) -> None:
    folder = tmp_path / "metrics"
    empty_shared_metrics(folder)
    rendered, processes = [], []
    try:
        for num_waiting in (1, 2, 4):
            if num_waiting == 4:
                processes[0].communicate("\n")
            process, values = start(folder, num_waiting)
            processes.append(process)
            rendered.append((values["lorikeet_http_requests_total"], values["lorikeet_usage_events_waiting"]))
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert rendered == [(1, 1), (2, 3), (3, 6)]
    empty_shared_metrics(folder)
    assert list(folder.iterdir()) == []


def test_urls_of_webhooks_are_not_logged() -> None:
    program = """
import logging, sys
from gateway.observability.metrics import configure_logging
configure_logging("info")
for name in ("httpx", "httpcore.connection", "other"):
    logging.getLogger(name).info("https://example.com/secret of %s", name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "secret of other" in done.stderr
    assert "secret of http" not in done.stderr
