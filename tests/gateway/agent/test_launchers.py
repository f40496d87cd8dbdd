"""The promises of every launcher, held by each of them: processes of this host, and of the nodes of a Ray cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from engine.config import model_digest
from gateway.agent.launcher import Begin, Ended, Engine, Launcher, LaunchPlace, LaunchRequest, NotYet, Spec
from gateway.agent.listeners import LinkListener
from gateway.agent.local import LocalLauncher
from gateway.agent.ray.launcher import RayLauncher
from gateway.settings import Settings
from tests.gateway.agent.ray.nodes import Nodes, needs_ray, ray_nodes
from tests.gateway.model_folder import make_model_folder
from tests.installation.waiting import until
from tests.patience import PATIENCE_S

PORTS = range(7600, 7650)
KEY = "a" * 40
OBEYS = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print('up'); time.sleep(600)"
DEFIES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(600)"
FAILS = "import sys; print('no such device'); sys.exit(78)"


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with ray_nodes("a", "b") as nodes:
        yield nodes


@pytest.fixture(params=["local", "apart", pytest.param("ray", marks=needs_ray)])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Launcher]:
    """Return a function that makes launchers of one host: each is the launcher of one agent after another."""
    if request.param != "ray":
        is_apart = request.param == "apart"
        listener = LinkListener("127.0.0.1", PORTS, tmp_path)
        return lambda: LocalLauncher(tmp_path / "replicas", tmp_path, listener, apart=is_apart)
    nodes: Nodes = request.getfixturevalue("nodes")
    settings = Settings(data_dir=tmp_path, placement="ray", ray_address=nodes.address, link_ports="7600-7649")
    return lambda: RayLauncher(settings)


@pytest.fixture
async def launcher(make: Callable[[], Launcher], spent: list[Engine]) -> AsyncIterator[Launcher]:
    made = await opened(make)
    yield made
    for engine in spent:
        with contextlib.suppress(ProcessLookupError):
            os.kill(engine.pid or 0, signal.SIGKILL)
    await seen(made)
    made.release(set())
    await made.close()


@pytest.fixture
def spent() -> list[Engine]:
    """Return an empty list for the engines that the test starts."""
    return []


@pytest.fixture
def ask(tmp_path: Path) -> Callable[[str, int], LaunchRequest]:
    folder = make_model_folder(tmp_path / "model")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    digest = model_digest(folder)
    return lambda replica_id, generation: LaunchRequest(
        replica_id, generation, str(folder), digest, memory_bytes=1 << 20
    )


async def opened(make: Callable[[], Launcher]) -> Launcher:
    """Return an opened launcher, which knows the running engines."""
    launcher = make()
    launcher.watch(lambda ended: None)
    await launcher.admit([KEY])
    await until(lambda: answer_with(launcher.unseen_s < 60))
    return launcher


async def started(launcher: Launcher, ask: LaunchRequest, begin: Begin, spent: list[Engine]) -> Engine | None:
    """Start an engine, and wait for it however long its machine takes."""
    while True:
        try:
            engine = await launcher.start(ask, begin)
        except NotYet:
            continue
        if engine is not None:
            spent.append(engine)
        return engine


def running_script(script: str, generation: int = 1, spots: list[LaunchPlace] | None = None) -> Begin:
    async def begin(spot: LaunchPlace) -> Spec | None:
        if spots is not None:
            spots.append(spot)
        command = [sys.executable, "-u", "-c", script]
        return Spec(generation, spot.address, command, {"PATH": "/usr/bin:/bin"}, spot.public_key)

    return begin


def is_alive(pid: int | None) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def answer_with(value: bool) -> bool:
    return value


async def seen(launcher: Launcher, *engines: Engine) -> None:
    """Wait until the launcher lists exactly these engines."""
    await until(lambda: answer_with(sorted(launcher.running().values(), key=str) == sorted(engines, key=str)))


async def test_an_engine_runs_where_its_launcher_said_and_in_a_session_of_its_own(
    launcher: Launcher, ask: Callable[[str, int], LaunchRequest], spent: list[Engine]
) -> None:
    spots: list[LaunchPlace] = []
    engine = await started(launcher, ask("replica_x", 1), running_script(OBEYS, 1, spots), spent)
    assert engine is not None and engine.pid is not None and is_alive(engine.pid)
    assert (engine.address, engine.generation) == (spots[0].address, 1)
    assert engine.address.startswith("tcp://") and spots[0].public_key is not None
    assert (Path(spots[0].link_dir) / "allowed").read_text() == f"{KEY}\n"
    assert os.getsid(engine.pid) != os.getsid(0)
    await seen(launcher, engine)


async def test_no_second_engine_of_a_replica_is_started(
    launcher: Launcher, make: Callable[[], Launcher], ask: Callable[[str, int], LaunchRequest], spent: list[Engine]
) -> None:
    other = await opened(make)
    engine = await started(launcher, ask("replica_x", 1), running_script(OBEYS), spent)
    assert await started(launcher, ask("replica_x", 2), running_script(OBEYS, 2), spent) is None
    assert await started(other, ask("replica_x", 2), running_script(OBEYS, 2), spent) is None
    assert engine is not None
    await seen(other, engine)
    await other.close()


async def test_of_two_launchers_that_start_the_same_replica_one_does(
    launcher: Launcher, make: Callable[[], Launcher], ask: Callable[[str, int], LaunchRequest], spent: list[Engine]
) -> None:
    other = await opened(make)
    for number in range(3):
        asked, script = ask(f"replica_{number}", 1), running_script(OBEYS)
        attempts = [started(each, asked, script, spent) for each in (launcher, other)]
        engines = await asyncio.gather(*attempts, return_exceptions=True)
        assert sum(isinstance(each, Engine) for each in engines) <= 1, engines
    assert len({engine.pid for engine in spent}) == len({engine.replica_id for engine in spent}) == len(spent)
    await other.close()


async def test_what_begin_refuses_or_raises_starts_nothing_and_stands_in_no_way(
    launcher: Launcher, ask: Callable[[str, int], LaunchRequest], spent: list[Engine]
) -> None:
    async def refuse(spot: LaunchPlace) -> Spec | None:
        return None

    async def fail(spot: LaunchPlace) -> Spec | None:
        raise ConnectionError("the database is away")

    assert await started(launcher, ask("replica_x", 1), refuse, spent) is None
    with pytest.raises(ConnectionError):
        await started(launcher, ask("replica_x", 1), fail, spent)
    assert launcher.running() == {}
    assert await started(launcher, ask("replica_x", 1), running_script(OBEYS), spent) is not None


@pytest.mark.parametrize(("script", "code"), [(OBEYS, 7), (DEFIES, -signal.SIGKILL)], ids=["obeys", "defies"])
async def test_an_engine_is_asked_to_end_and_killed_when_its_time_is_over(
    script: str, code: int, launcher: Launcher, ask: Callable[[str, int], LaunchRequest], spent: list[Engine]
) -> None:
    told = asyncio.Queue[Ended]()
    launcher.watch(told.put_nowait)
    engine = await started(launcher, ask("replica_x", 1), running_script(script), spent)
    assert engine is not None
    await seen(launcher, engine)
    await asyncio.sleep(0.5)  # it arranges what a signal does
    await launcher.stop(engine, 30.0 if script == OBEYS else 0.2)
    assert not is_alive(engine.pid) and launcher.running() == {}
    ended = await asyncio.wait_for(told.get(), PATIENCE_S)
    assert (ended.replica_id, ended.generation, ended.returncode, ended.last_lines) == ("replica_x", 1, code, "up")


async def test_an_engine_that_ends_before_its_launcher_can_watch_it_says_how(
    launcher: Launcher, ask: Callable[[str, int], LaunchRequest], spent: list[Engine]
) -> None:
    told = asyncio.Queue[Ended]()
    launcher.watch(told.put_nowait)

    async def begin(spot: LaunchPlace) -> Spec | None:
        return Spec(1, spot.address, ["/bin/sh", "-c", "echo gone; exit 3"], {"PATH": "/usr/bin:/bin"}, spot.public_key)

    assert await started(launcher, ask("replica_x", 1), begin, spent) is not None
    ended = await asyncio.wait_for(told.get(), PATIENCE_S)
    assert msgspec.structs.astuple(ended) == ("replica_x", 1, 3, "gone")
    await seen(launcher)


async def test_an_engine_that_ends_by_itself_says_how_and_its_next_start_is_another_generation(
    launcher: Launcher, ask: Callable[[str, int], LaunchRequest], spent: list[Engine]
) -> None:
    told = asyncio.Queue[Ended]()
    launcher.watch(told.put_nowait)
    assert await started(launcher, ask("replica_x", 1), running_script(FAILS), spent) is not None
    ended = await asyncio.wait_for(told.get(), PATIENCE_S)
    assert msgspec.structs.astuple(ended) == ("replica_x", 1, 78, "no such device")
    await seen(launcher)
    engine = await started(launcher, ask("replica_x", 2), running_script(OBEYS, 2), spent)
    assert engine is not None and engine.generation == 2
    await seen(launcher, engine)


async def test_engines_outlive_their_launcher_and_the_next_one_sees_and_ends_them(
    make: Callable[[], Launcher], ask: Callable[[str, int], LaunchRequest], spent: list[Engine]
) -> None:
    first = await opened(make)
    engines = [await started(first, ask(f"replica_{n}", 1), running_script(OBEYS), spent) for n in range(2)]
    assert len({each.address for each in engines if each is not None}) == 2
    await first.close()
    assert all(each is not None and is_alive(each.pid) for each in engines)
    second = await opened(make)
    await seen(second, *(each for each in engines if each is not None))
    for each in engines:
        assert each is not None
        await second.stop(each, 30.0)
        assert not is_alive(each.pid)
    second.release(set())
    await second.close()
