"""An agent that reads the cluster's state overlooks no engine that starts meanwhile, and gives back no resources of a
host that another agent has taken over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.agent.launcher import Engine, LaunchPlace, LaunchRequest, LaunchSpec
from gateway.agent.ray.launcher import RayLauncher
from gateway.agent.ray.messages import ClusterState, Go, Look, Offer, Offered, Started
from gateway.settings import Settings

ENGINE = Engine("r", 1, "tcp://127.0.0.1:1", 2)


class FakeBridge:
    """A fake bridge to Ray on which an engine starts while the state of the cluster is read."""

    def __init__(self, launcher: RayLauncher) -> None:
        self.launcher = launcher
        self.starts = True
        self.kept: list[list[str] | None] = []

    async def call(self, call: Any, seconds: float) -> Any:
        if isinstance(call, Look):
            self.kept.append(call.kept)
            if self.starts:
                await self.launcher.start(LaunchRequest("r", 1, "", ""), begin_engine)
            return ClusterState([], [], [])
        if isinstance(call, Offer):
            return Offered(LaunchPlace(ENGINE.address, ENGINE.address))
        assert isinstance(call, Go)
        return Started(ENGINE)


async def begin_engine(spot: LaunchPlace) -> LaunchSpec:
    return LaunchSpec(1, spot.address, [], {})


async def test_an_engine_that_starts_while_the_state_is_read_is_listed_until_the_next_reading(tmp_path: Path) -> None:
    launcher: Any = RayLauncher(Settings(data_dir=tmp_path, placement="ray", link_ports="7600-7649"))
    launcher._bridge = cluster = FakeBridge(launcher)
    await launcher._look()
    assert launcher.running() == {"r": ENGINE}
    cluster.starts = False
    await launcher._look()
    assert launcher.running() == {}


async def test_only_the_agent_that_holds_the_host_gives_resources_back(tmp_path: Path) -> None:
    launcher: Any = RayLauncher(Settings(data_dir=tmp_path, placement="ray", link_ports="7600-7649"))
    launcher._bridge = cluster = FakeBridge(launcher)
    cluster.starts = False
    launcher.release(set(), 5.0)
    await launcher._look()
    launcher.release(set(), 0.0)
    await launcher._look()
    assert cluster.kept == [[], None]
    await launcher.close(is_superseded=True)
    assert len(cluster.kept) == 2, "nothing is looked at"
    await launcher.close()
    assert len(cluster.kept) == 3
