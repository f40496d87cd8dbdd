"""One turn at a time on a machine, the projects in turn, and none that is given up keeps others from theirs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.adapters.inspection_queue import InspectionQueue
from gateway.domain.errors import Overloaded
from tests.patience import PATIENCE_S


class Turns:
    """The record of turns: the project and the number of each, in order."""

    def __init__(self, *lines: InspectionQueue) -> None:
        self.lines = lines
        self.had: list[str] = []
        self.num_at_once = self.most_at_once = 0

    async def take(self, project: str, number: int = 0) -> None:
        async with self.lines[number].turn(project):
            self.num_at_once += 1
            self.most_at_once = max(self.most_at_once, self.num_at_once)
            await asyncio.sleep(0)
            self.had.append(project)
            self.num_at_once -= 1

    async def waiting(self, project: str, number: int = 0) -> asyncio.Task[None]:
        """Return a task that waits in the queue already."""
        task = asyncio.create_task(self.take(project, number))
        await asyncio.sleep(0)
        return task


async def test_a_project_with_many_waits_no_less_than_one_with_few(tmp_path: Path) -> None:
    turns = Turns(InspectionQueue(tmp_path / "lock"))
    async with turns.lines[0].turn("acme"):
        tasks = [await turns.waiting(project) for project in ("acme", "acme", "acme", "globex", "globex", "initech")]
    await asyncio.gather(*tasks)
    assert turns.had == ["acme", "globex", "initech", "acme", "globex", "acme"]


async def test_the_gateways_of_a_machine_have_one_turn_and_each_gets_its_own(tmp_path: Path) -> None:
    turns = Turns(*(InspectionQueue(tmp_path / "run" / "lock") for _ in range(2)))
    names = ("first", "second")
    tasks = [await turns.waiting(names[number], number) for number in (0, 1) * 6]
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*tasks)
    assert turns.most_at_once == 1
    assert set(turns.had[:6]) == set(names), "neither waits for all of the other's"


async def test_who_gives_up_is_passed_over(tmp_path: Path) -> None:
    turns = Turns(InspectionQueue(tmp_path / "lock"))
    async with turns.lines[0].turn("acme"):
        gone, stays, too_late = [await turns.waiting(project) for project in ("a", "b", "c")]
        gone.cancel()
        await asyncio.wait([gone])
    too_late.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await stays
        await asyncio.wait([too_late])
        await turns.take("d")
    assert turns.had == ["b", "d"]


async def test_who_is_canceled_as_the_turn_comes_passes_it_on(tmp_path: Path) -> None:
    turns = Turns(InspectionQueue(tmp_path / "lock"))
    async with turns.lines[0].turn("acme"):
        first, second = [await turns.waiting(project) for project in ("a", "b")]
    first.cancel()  # the turn is a's, which does not know yet
    async with asyncio.timeout(PATIENCE_S):
        await second
    assert turns.had == ["b"]


async def test_the_wait_is_bounded(tmp_path: Path) -> None:
    patient, other = InspectionQueue(tmp_path / "lock"), InspectionQueue(tmp_path / "lock", max_wait_s=0.05)
    async with patient.turn("acme"):
        for line in (other, other):
            with pytest.raises(Overloaded) as refused:
                async with line.turn("globex"):
                    raise AssertionError("it is somebody else's turn")
            assert refused.value.retry_after_s
    async with other.turn("globex"):
        pass
