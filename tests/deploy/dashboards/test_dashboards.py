"""The dashboards: what the program writes, in Grafana's form, over series that a running gateway exports."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from deploy.dashboards.__main__ import FOLDER
from deploy.dashboards.boards import BOARDS
from deploy.dashboards.panel import HEIGHT, WIDTH, Board, rendered
from gateway.observability.metrics import Metrics
from tests.gateway.live import make_tenant
from tests.gateway.model_folder import make_model_folder
from tests.installation.databases import Databases
from tests.installation.live_gateway import running_gateways
from tests.installation.waiting import wait_until
from tests.patience import PATIENCE_S

NAME = r"(?:lorikeet_[a-z_]+|vllm:[a-z_]+)"
EXPRESSIONS = [
    (board.name, query.expression) for board in BOARDS for panel in board.panels for query in panel.queries
] + [(board.name, f"sum by ({it.label}) ({it.metric})") for board in BOARDS for it in board.variables]

Labels = dict[str, set[str]]
"""The labels of each series, by its name."""


def labels_of(text: str) -> Labels:
    found: Labels = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.fixture(scope="module")
def exported(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Labels]:
    """Give the metrics that a gateway exports once it has answered requests, and the metrics of faults once there is
    one.
    """
    dsn, folder = databases.create("dashboards"), tmp_path_factory.mktemp("dashboards")
    tenant = asyncio.run(make_tenant(dsn, "acme", "pirate", "1"))
    slow = ("--tokens-per-s", "20")  # so that a request still runs at the next heartbeat
    with running_gateways(dsn, make_model_folder(folder / "model"), engine_flags=slow, data_dir=folder) as installed:
        headers = {"authorization": f"Bearer {tenant.key}"}
        with httpx.Client(base_url=installed.gateway.url, headers=headers, timeout=PATIENCE_S) as client:
            body = {"model": "tiny:pirate", "prompt": "abc", "max_tokens": 3}
            assert client.post("/v1/completions", json=body).status_code == 200
            body |= {"max_tokens": 400, "stream": True}
            with client.stream("POST", "/v1/completions", json=body) as reply:
                assert reply.status_code == 200
                live = wait_until(lambda: _with_tenants(installed.gateway.metrics()), "the tenant is not counted")
        yield _of_faults() | live


def _with_tenants(text: str) -> Labels | None:
    """Return the metrics of a scrape once they include the last request in the ledger and a running one; else None."""
    found = labels_of(text)
    return found if {"lorikeet_tenant_requests_total", "lorikeet_tenant_service"} <= found.keys() else None


def _of_faults() -> Labels:
    """Return the metrics that exist only once something has failed, or was compared."""
    metrics = Metrics(CollectorRegistry())
    metrics.count_cut_stream("/v1/completions")
    metrics.content_lost.labels("reply").inc()
    metrics.spans.labels("no_room").inc()
    metrics.routes.count_attempt("route", "died", is_followed=True)
    metrics.journal.difference.set({("tiny", "rep_1"): 0})
    return labels_of(metrics.render().decode())


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_the_file_is_what_the_program_writes(board: Board) -> None:
    assert (FOLDER / f"{board.name}.json").read_text() == rendered(board) + "\n", "run `python -m deploy.dashboards`"


def test_there_is_no_other_file() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == {board.name for board in BOARDS}


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_any_grafana_can_import_it(board: Board) -> None:
    made: dict[str, Any] = json.loads(rendered(board))
    assert "id" not in made and made["uid"] == f"lorikeet-{board.name}" and len(made["uid"]) <= 40
    assert made["templating"]["list"][0]["type"] == "datasource"
    panels = made["panels"]
    assert len({each["id"] for each in panels}) == len(panels)
    places = set()
    for panel in panels:
        assert panel["description"] and panel["title"] and panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${datasource}"
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= WIDTH and at["h"] == HEIGHT and not cells & places
        places |= cells
    chosen = set(re.findall(r"\$(\w+)\"", json.dumps(panels).replace("\\", "")))
    assert chosen == {each.name for each in board.variables}


@pytest.mark.parametrize(("board", "expression"), EXPRESSIONS)
def test_every_expression_is_of_series_that_gateways_export(exported: Labels, board: str, expression: str) -> None:
    names = re.findall(rf"\b{NAME}\b", expression)
    assert names
    for name in names:
        assert name in exported, f"{name} is not exported"
    for name, matchers in re.findall(rf"({NAME})\{{([^}}]*)\}}", expression):
        assert set(re.findall(r"(\w+)[=!]", matchers)) <= exported[name], name
    for labels in re.findall(r"by \(([^)]+)\)", expression):
        wanted = {each.strip() for each in labels.split(",")}
        assert all(wanted <= exported[name] for name in names), labels


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not here: Debian's package prometheus has it")
def test_prometheus_takes_every_expression(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:number:{at}", "expr": expression.replace("$__rate_interval", "1m").replace("$", "")}
        for at, (_, expression) in enumerate(EXPRESSIONS)
    ]
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    checked = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
