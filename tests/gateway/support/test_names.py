"""Names whose servers do not answer keep nobody else waiting."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.support.names import Names
from gateway.support.threads import in_new_thread
from tests.patience import PATIENCE_S


class SilentResolver:
    """A resolver whose look-ups of names that begin with "slow" block until they are let go."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()

    def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        self.begun.release()
        if host.startswith("slow"):
            self.go.wait(PATIENCE_S)
            raise OSError("no server answers")
        return ["192.0.2.7"]


@pytest.fixture
def silent() -> Iterator[SilentResolver]:
    resolver = SilentResolver()
    yield resolver
    resolver.go.set()


async def started(names: Names, silent: SilentResolver, hosts: Sequence[str]) -> list[asyncio.Task[Sequence[str]]]:
    """Begin to look up names, and wait until the resolver was asked for each."""
    tasks = [asyncio.create_task(names.look_up(host, 443)) for host in hosts]
    await asyncio.sleep(0)  # each task has asked
    assert await in_new_thread(lambda: all(silent.begun.acquire(timeout=PATIENCE_S) for _ in hosts), "waits")
    return tasks


async def test_work_in_threads_and_other_names_go_on_beside_names_that_nobody_answers(silent: SilentResolver) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    names = Names(silent)
    waiting = await started(names, silent, [f"slow-{number}" for number in range(40)])
    async with asyncio.timeout(PATIENCE_S / 2):
        assert await asyncio.to_thread(int) == 0
        assert await names.look_up("quick", 443) == ["192.0.2.7"]
    assert not any(task.done() for task in waiting)
    silent.go.set()
    assert all(isinstance(each, OSError) for each in await asyncio.gather(*waiting, return_exceptions=True))


async def test_a_name_is_looked_up_once_at_a_time_also_after_its_first_caller_has_gone(silent: SilentResolver) -> None:
    names = Names(silent)
    (first,) = await started(names, silent, ["slow"])
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    again = asyncio.create_task(names.look_up("slow", 443))
    await asyncio.sleep(0)
    silent.go.set()
    with pytest.raises(OSError, match="no server answers"):
        await again
    assert silent.asked == ["slow"]
    with pytest.raises(OSError, match="no server answers"):
        await names.look_up("slow", 443)
    assert silent.asked == ["slow", "slow"]


async def test_too_many_at_once_are_refused(silent: SilentResolver) -> None:
    names = Names(silent, max_at_once=2)
    waiting = await started(names, silent, ["slow-1", "slow-2"])
    with pytest.raises(socket.gaierror, match="too many") as refused:
        await names.look_up("quick", 443)
    assert refused.value.errno == socket.EAI_AGAIN
    silent.go.set()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert await names.look_up("quick", 443) == ["192.0.2.7"]


async def test_a_name_without_a_thread_to_look_it_up_in_has_no_address_for_now(silent: SilentResolver) -> None:
    names = Names(silent)
    before = threading.stack_size(1 << 60)  # more than there are addresses: no thread starts
    try:
        with pytest.raises(socket.gaierror, match="no thread") as refused:
            await names.look_up("quick", 443)
    finally:
        threading.stack_size(before)
    assert refused.value.errno == socket.EAI_AGAIN and silent.asked == []
    assert await names.look_up("quick", 443) == ["192.0.2.7"]
