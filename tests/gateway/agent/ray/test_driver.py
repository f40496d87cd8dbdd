"""The driver knows the engines of its cluster even if supervisors do not answer, and answers commands that fail."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.agent.launcher import Engine, LaunchRequest
from gateway.agent.ray.messages import ClusterState, Go, Look, Offer, Setup, Started, Unreachable, Waits

pytest.importorskip("ray")
from gateway.agent.ray import driver as drivers
from gateway.agent.ray.supervisor import NodeEngines

ENGINE = Engine("r", 1, "tcp://127.0.0.1:1", 2)


class FakeSupervisor:
    """A fake Ray actor that supervises the engines of one node; with `is_silent` it never says which run."""

    def __init__(self, *engines: Engine) -> None:
        self.engines = list(engines)
        self.is_silent = False
        self.num_looks = 0
        self.meanwhile = asyncio.Event()
        self.meanwhile.set()
        self.look = self.go = self

    def remote(self, *given: Any) -> Any:
        return self._start() if given and given[0] == "spec" else self._look()

    async def _start(self) -> Engine:
        self.engines.append(ENGINE)
        return ENGINE

    async def _look(self) -> NodeEngines:
        self.num_looks += 1
        seen = list(self.engines)
        if self.is_silent:
            await asyncio.sleep(600)
        await self.meanwhile.wait()
        return NodeEngines("a", seen, {}, [])


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the nodes of the cluster."""
    nodes: list[dict[str, Any]] = [{"NodeID": "a", "Alive": True}]
    monkeypatch.setattr(drivers, "LOOK_S", 0.2)
    monkeypatch.setattr(
        drivers, "ray", SimpleNamespace(nodes=lambda: nodes, remote=lambda cls: None, kill=lambda actor: None)
    )
    return nodes


def driver_with(seat: FakeSupervisor) -> Any:
    driver: Any = drivers.Driver(Setup("", "", "", 1, 2, ""))
    driver._seats = {"r": seat}
    driver._looked_at = {"a"}
    lookout = FakeSupervisor()
    lookout.is_silent = True
    driver._make_lookout = lambda node_id: lookout
    return driver


async def engines_seen_by(driver: Any) -> list[Engine]:
    picture = await driver.answer(Look([], None))
    assert isinstance(picture, ClusterState), picture
    return picture.engines


async def test_an_engine_on_a_silent_node_counts_as_running_until_the_node_is_dead(nodes: list[dict[str, Any]]) -> None:
    seat = FakeSupervisor(ENGINE)
    driver = driver_with(seat)
    assert await engines_seen_by(driver) == [ENGINE]
    seat.is_silent = True
    assert await engines_seen_by(driver) == [ENGINE]
    assert driver._looked_at == set(), "its node is looked at again"
    assert await engines_seen_by(driver) == [ENGINE]
    assert seat.num_looks == 2, "it is not asked again while it owes an answer"
    nodes.clear()
    assert await engines_seen_by(driver) == []


async def test_an_engine_that_a_node_does_not_name_any_more_has_ended(nodes: list[dict[str, Any]]) -> None:
    seat = FakeSupervisor(ENGINE)
    driver = driver_with(seat)
    assert await engines_seen_by(driver) == [ENGINE]
    seat.engines.clear()
    assert await engines_seen_by(driver) == []


async def test_an_engine_that_starts_while_its_node_is_queried_is_not_missed(nodes: list[dict[str, Any]]) -> None:
    seat = FakeSupervisor()
    driver = driver_with(seat)
    seat.meanwhile.clear()
    looking = asyncio.create_task(engines_seen_by(driver))
    await asyncio.sleep(0.1)
    driver._seat_nodes["r"] = "a"
    assert await driver.answer(Go("r", "spec")) == Started(ENGINE)  # type: ignore[arg-type]
    seat.meanwhile.set()
    assert await looking == [ENGINE]


async def test_a_command_that_raises_is_answered_as_unreachable(nodes: list[dict[str, Any]]) -> None:
    driver = driver_with(FakeSupervisor())
    del driver._seat_nodes
    assert isinstance(await driver.answer(Look([], None)), Unreachable)


async def test_a_replica_that_waits_and_takes_other_resources_by_now_gets_another_seat(
    nodes: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "PLACE_S", 0.05)
    made: list[Any] = []
    driver = driver_with(FakeSupervisor())
    driver._seats.clear()

    class Kind:
        def options(self, **options: Any) -> Kind:
            made.append(options.get("label_selector"))
            return self

        def remote(self, *given: Any) -> FakeSupervisor:
            seat = FakeSupervisor()
            seat.is_silent = True
            return seat

    driver._supervisor = Kind()
    for labels in ({"zone": "x"}, {"zone": "x"}, {"zone": "y"}, {"zone": "y"}):
        assert isinstance(await driver.answer(Offer(LaunchRequest("r", 1, "", "", labels=labels), [])), Waits)
    for _ in range(3):  # the first one gives the former seat back
        assert isinstance(
            await driver.answer(Offer(LaunchRequest("r", 1, "", "", excluded={"zone": ["y"]}), [])), Waits
        )
    assert made == [{"zone": "x"}, {"zone": "y"}, {"zone": "!in(y)"}]
