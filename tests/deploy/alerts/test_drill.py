"""Faults are brought upon an installation under load, and the alert of each fires in a real Prometheus, and no other.

The rules' hours are minutes. `-k` chooses faults by their names.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from deploy.alerts.alert import Alert
from deploy.dashboards.boards import BOARDS
from tests.deploy.alerts.causes import CAUSES
from tests.deploy.alerts.live import PROGRAM, as_prometheus_reads, watching
from tests.deploy.alerts.scene import Scene
from tests.deploy.alerts.test_rules import ALWAYS_FIRES, GROUPS
from tests.drills.ground import running_ground
from tests.installation.waiting import wait_until

DIVISOR = 60
QUIET_S = 60.0
"""The seconds that stand for an hour of the rules."""

SHARE = 0.1
"""The share of the fake engines' capacity that the load takes: few enough for those of a fault to be most requests."""

ALERTS = {(rule.name, rule.window) for group in GROUPS for rule in group.rules if isinstance(rule, Alert)}
NO_COLLECTOR = "http://127.0.0.1:9/v1/traces"
"""The URL of a collector that does not exist, so that spans are dropped, which a dashboard shows."""

REMEMBERING = {(name, window) for name, window in ALERTS if window not in ("", "1h")}
"""Alerts whose long windows keep them firing for minutes after a fault."""


def test_each_alert_has_a_cause() -> None:
    caused = set().union(*(cause.fires for cause in CAUSES.values()))
    assert caused | {(name, "") for name in ALWAYS_FIRES} == ALERTS


@pytest.fixture(scope="module")
def scene(open_folder: Path, pytestconfig: pytest.Config) -> Iterator[Scene]:
    if not pytestconfig.getoption("full"):
        pytest.skip("make long-alerts")
    if PROGRAM is None:
        pytest.skip("prometheus is not here: Debian's package prometheus has it")
    folder = open_folder / "alerts"
    folder.mkdir()
    with running_ground(folder, changes={"traces_url": NO_COLLECTOR}) as ground:
        asyncio.run(ground.warm_up())
        urls = [gateway.operator_url for gateway in ground.gateways]
        with ground.traffic(SHARE) as traffic, watching(folder / "prometheus", urls, DIVISOR) as prometheus:
            traffic.more_answers(20)
            yield Scene(ground, traffic, prometheus)


def test_nothing_fires_in_a_quiet_hour(scene: Scene) -> None:
    ends_s, fired = time.monotonic() + QUIET_S, set[tuple[str, str]]()
    while time.monotonic() < ends_s:
        fired |= scene.prometheus.firing()
        time.sleep(1)
    assert fired == {(name, "") for name in ALWAYS_FIRES}


@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_of_an_alert_lets_it_fire(scene: Scene, name: str) -> None:
    cause = CAUSES[name]
    _wait_until_silent(scene)
    began_s, fired = time.monotonic(), set[tuple[str, str]]()

    def all_fire() -> bool:
        nonlocal fired
        fired |= scene.prometheus.firing()
        return cause.fires <= fired

    with ExitStack() as until:
        cause.fault(scene, until)
        wait_until(
            all_fire, lambda: f"{cause.fires - fired} do not fire; {fired} do", patience_s=cause.within_s, pause_s=0.5
        )
    print(f"{name}: {sorted(cause.fires)} after {time.monotonic() - began_s:.0f} s")
    others = {alert for alert, _ in fired - REMEMBERING} - {alert for alert, _ in cause.fires} - ALWAYS_FIRES
    assert others <= set(cause.beside), others
    scene.traffic.more_answers(10)


def test_every_expression_of_the_dashboards_gives_data(scene: Scene) -> None:
    """Each expression has data at some time of the drill: a metric that counts a fault has none before the fault."""
    empty = [
        (board.name, panel.title, query.expression)
        for board in BOARDS
        for panel in board.panels
        for query in panel.queries
        if not scene.prometheus.ever_had(as_prometheus_reads(query.expression), 3600)
    ]
    assert empty == []


def _wait_until_silent(scene: Scene) -> None:
    """Wait until no alert of the last fault fires, except those in REMEMBERING."""
    quiet = {(name, "") for name in ALWAYS_FIRES}
    wait_until(
        lambda: scene.prometheus.firing() - REMEMBERING == quiet,
        lambda: f"alerts of the fault before still fire: {scene.prometheus.firing()}",
        patience_s=1200,
        pause_s=0.5,
    )
