"""The alerting rules: what the program writes, over metrics that exist, each with its page, and right when needed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from deploy.alerts.__main__ import HEAD, RULES, groups
from deploy.alerts.alert import Alert, Record, rendered
from deploy.alerts.objectives import Objectives
from gateway.observability.metrics import Metrics
from tests.deploy.alerts.cases import CASES, Case

RUNBOOKS = RULES.parents[1] / "runbooks"
GROUPS = groups(Objectives())
ALERTS = {rule.name for group in GROUPS for rule in group.rules if isinstance(rule, Alert)}
ALWAYS_FIRES = {"Watchdog"}
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not here: Debian's package prometheus has it"
)


def test_the_file_is_what_the_program_writes() -> None:
    assert RULES.read_text() == HEAD + rendered(GROUPS), "run `python -m deploy.alerts`"


def test_each_alert_has_a_page_and_a_case() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"} == ALERTS
    assert {name for name, _ in CASES} == ALERTS - ALWAYS_FIRES
    listed = re.findall(r"^\| \[(\w+)\]", (RUNBOOKS / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(ALERTS)


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_each_page_says_what_to_do(name: str) -> None:
    text = (RUNBOOKS / f"{name}.md").read_text()
    assert re.findall(r"^#+ (.+)$", text, re.MULTILINE) == [name, "What users notice", "Look at", "Do"]


def test_rules_and_pages_name_metrics_that_gateways_export() -> None:
    metrics = Metrics(CollectorRegistry())
    metrics.watch({})
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", metrics.render().decode(), re.MULTILINE))
    exported = set(kinds) | {f"{name}_{part}" for name in kinds for part in ("bucket", "count", "sum")}
    rules = [rule for group in GROUPS for rule in group.rules]
    recorded = {rule.name for rule in rules if isinstance(rule, Record)}
    texts = [rule.expression for rule in rules] + [path.read_text() for path in RUNBOOKS.glob("*.md")]
    named = {name for text in texts for name in re.findall(r"\b(?:lorikeet_[a-z_]+|vllm:[a-z_]+)\b", text)}
    assert named - exported - {"lorikeet_runtime"} == set()
    used = {name for text in texts for name in re.findall(r"\blorikeet:\w+:\w+\b", text)}
    assert used == recorded


@needs_promtool
def test_prometheus_takes_the_rules(tmp_path: Path) -> None:
    drill = tmp_path / "drill.yml"
    drill.write_text(rendered(GROUPS, divisor=60))
    done = subprocess.run(["promtool", "check", "rules", RULES, drill], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize("step_minutes", sorted({case.step_minutes for _, case in CASES}))
def test_each_alert_fires_on_its_fault_and_on_nothing_like_it(step_minutes: int, tmp_path: Path, full: bool) -> None:
    if not full:
        pytest.skip("make long-alerts")
    tests = [test for name, case in CASES if case.step_minutes == step_minutes for test in _tests(name, case)]
    assert tests
    path, interval = tmp_path / "tests.json", f"{step_minutes}m"
    path.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": interval, "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _tests(name: str, case: Case) -> list[dict[str, object]]:
    """Return a case as promtool's tests: whether the alert fires at its end."""
    label = f',window="{case.window}"' if case.window else ""
    expression = f'count(ALERTS{{alertname="{name}",alertstate="firing"{label}}}) or vector(0)'
    return [
        {
            "name": f"{name} {case.window} {'fires' if fires else 'is silent'}",
            "interval": f"{case.step_minutes}m",
            "input_series": [{"series": each, "values": values} for each, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": expression,
                    "eval_time": f"{case.minutes}m",
                    "exp_samples": [{"labels": "{}", "value": int(fires)}],
                }
            ],
        }
        for fires, series in ((True, case.fires), (False, case.silent))
    ]
