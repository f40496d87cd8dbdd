"""A real Prometheus over gateways of this machine, with the rules of deploy/alerts, whose hours are minutes or less."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from deploy.alerts.__main__ import groups
from deploy.alerts.alert import rendered
from deploy.alerts.objectives import Objectives
from tests.installation.processes import ChildProcess, free_port
from tests.installation.waiting import wait_until
from tests.patience import PATIENCE_S

PROGRAM = shutil.which("prometheus")
EVERY_S = 1
"""Seconds between two scrapes, and between two looks at the rules."""


class Prometheus(ChildProcess):
    """A Prometheus server that scrapes gateways each second.

    divisor: the number by which all durations of the rules are divided.
    """

    def __init__(self, folder: Path, targets: Sequence[str], divisor: int) -> None:
        assert PROGRAM is not None
        folder.mkdir()
        self._url = f"http://127.0.0.1:{free_port()}"
        (folder / "rules.yml").write_text(rendered(groups(Objectives()), divisor))
        config = {
            "global": {"scrape_interval": f"{EVERY_S}s", "scrape_timeout": "1s", "evaluation_interval": f"{EVERY_S}s"},
            "rule_files": [str(folder / "rules.yml")],
            "scrape_configs": [{"job_name": "lorikeet", "static_configs": [{"targets": list(targets)}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        command = [
            PROGRAM,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self._url.removeprefix('http://')}",
        ]
        super().__init__(command, log=folder / "prometheus.log")

    def firing(self) -> set[tuple[str, str]]:
        """Return the firing alerts: the name, and the window where several alerts have the name."""
        alerts = self._ask("/api/v1/alerts")["alerts"]
        return {
            (alert["labels"]["alertname"], alert["labels"].get("window", ""))
            for alert in alerts
            if alert["state"] == "firing"
        }

    def ever_had(self, expression: str, seconds: float) -> bool:
        """Tell whether an expression had a result at any time in the last seconds."""
        now_s = time.time()
        asked = {"query": expression, "start": now_s - seconds, "end": now_s, "step": 5}
        return bool(self._ask("/api/v1/query_range", asked)["result"])

    def is_scraping(self) -> bool:
        """Tell whether the server has started, and has scraped every gateway."""
        with suppress(httpx.TransportError):
            if httpx.get(f"{self._url}/-/ready", timeout=PATIENCE_S).status_code != httpx.codes.OK:
                return False
            found = self._ask("/api/v1/query", {"query": 'min(up{job="lorikeet"})'})["result"]
            return bool(found) and found[0]["value"][1] == "1"
        return False

    def _ask(self, path: str, fields: dict[str, Any] | None = None) -> dict[str, Any]:
        reply = httpx.get(self._url + path, params=fields, timeout=PATIENCE_S)
        assert reply.status_code == 200, (fields, reply.text)
        data: dict[str, Any] = reply.json()["data"]
        return data


@contextmanager
def watching(folder: Path, gateways: Sequence[str], divisor: int) -> Iterator[Prometheus]:
    """Give a Prometheus that has scraped every gateway once.

    gateways: the URLs of their metrics. divisor: what all durations of the alerts are divided by.
    """
    server = Prometheus(folder, [url.removeprefix("http://") for url in gateways], divisor)
    try:
        server.start()
        wait_until(server.is_scraping, server.output)
        yield server
    finally:
        server.kill()


def as_prometheus_reads(expression: str) -> str:
    """Return a dashboard's expression with concrete values in place of Grafana's variables."""
    return re.sub(r'(=~?)"\$\w+"', '=~".*"', expression.replace("$__rate_interval", "10s"))
