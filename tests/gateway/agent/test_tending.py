"""Steps that cannot reach what runs engines are put off, and an engine that is missed for a moment has not ended."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from gateway.agent.launcher import CannotReach, Engine
from gateway.agent.steps import Site
from gateway.agent.tending import Replicas


class UnreachableLauncher:
    """A fake launcher whose engines cannot be reached."""

    unseen_s = 3.0

    def __init__(self) -> None:
        self.num_stops = 0

    def watch(self, ended: Any) -> None:
        pass

    def release(self, replica_ids: set[str], held_s: float) -> None:
        pass

    def running(self) -> dict[str, Engine]:
        return {"r": Engine("r", 1, "tcp://127.0.0.1:1", 2)}

    async def stop(self, engine: Engine, grace_s: float) -> None:
        self.num_stops += 1
        raise CannotReach("the cluster is away")


class HeldLease:
    """A fake lease that is never lost."""

    host_id, generation, held_s = "h", 1, 5.0

    async def confirm(self) -> None:
        pass


async def test_an_engine_that_cannot_be_reached_is_not_ended_again_and_again() -> None:
    launcher: Any = UnreachableLauncher()
    anything: Any = SimpleNamespace(gpu_bytes=[])
    site = Site(anything, anything, anything, launcher, lambda config: [], HeldLease(), anything)
    wake, passes = asyncio.Event(), 0
    replicas = Replicas(site, wake.set, lambda revision: "")

    async def work() -> None:
        nonlocal passes
        while True:
            wake.clear()
            await replicas.begin_due([], replicas.busy)
            passes += 1
            await wake.wait()

    working = asyncio.create_task(work())
    await asyncio.sleep(0.3)
    assert (launcher.num_stops, passes) == (1, 1)
    await asyncio.sleep(1.2)
    assert launcher.num_stops == 2, "it is tried again"
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


async def test_an_engine_counts_as_ended_only_once_it_is_missed_for_long() -> None:
    launcher: Any = UnreachableLauncher()
    anything: Any = SimpleNamespace(gpu_bytes=[])
    site = Site(anything, anything, anything, launcher, lambda config: [], HeldLease(), anything)
    replicas: Any = Replicas(site, lambda: None, lambda revision: "")
    row = SimpleNamespace(id="r", generation=1, state="loading", why="")
    served: Any = SimpleNamespace(row=row, revision=None)
    silent = SimpleNamespace(silent_since_s=asyncio.get_running_loop().time() - 20.0, was_connected=False)
    anything.replica_start_seconds = 600
    replicas._steps = SimpleNamespace(follow=lambda row, revision: silent, record_loss=lambda served: "lost")
    replicas._note_unseen({"r": served}, {}, asyncio.get_running_loop().time())
    assert replicas._watch(served, None) is None, "it loads, and left the picture just now"
    replicas._unseen_since_s["r", 1] -= 4.0
    assert replicas._watch(served, None) == "lost"
