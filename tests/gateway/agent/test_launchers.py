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
from gateway.agent.launcher import (
    Begin,
    Engine,
    EngineEnd,
    Launcher,
    LaunchPlace,
    LaunchRequest,
    LaunchSpec,
    NoMachineYet,
)
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
def make_launcher(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Launcher]:
    """Return a function that makes launchers of one host: each is the launcher of one agent after another."""
    if request.param != "ray":
        is_apart = request.param == "apart"
        listener = LinkListener("127.0.0.1", PORTS, tmp_path)
        return lambda: LocalLauncher(tmp_path / "replicas", tmp_path, listener, apart=is_apart)
    nodes: Nodes = request.getfixturevalue("nodes")
    settings = Settings(data_dir=tmp_path, placement="ray", ray_address=nodes.address, link_ports="7600-7649")
    return lambda: RayLauncher(settings)


@pytest.fixture
async def launcher(make_launcher: Callable[[], Launcher], started_engines: list[Engine]) -> AsyncIterator[Launcher]:
    made = await open_launcher(make_launcher)
    yield made
    for engine in started_engines:
        with contextlib.suppress(ProcessLookupError):
            os.kill(engine.pid or 0, signal.SIGKILL)
    await wait_until_listed(made)
    made.release(set())
    await made.close()


@pytest.fixture
def started_engines() -> list[Engine]:
    """Return an empty list for the engines that the test starts."""
    return []


@pytest.fixture
def make_request(tmp_path: Path) -> Callable[[str, int], LaunchRequest]:
    folder = make_model_folder(tmp_path / "model")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    digest = model_digest(folder)
    return lambda replica_id, generation: LaunchRequest(
        replica_id, generation, str(folder), digest, memory_bytes=1 << 20
    )


async def open_launcher(make_launcher: Callable[[], Launcher]) -> Launcher:
    """Return an opened launcher, which knows the running engines."""
    launcher = make_launcher()
    launcher.watch(lambda ended: None)
    await launcher.admit([KEY])
    await until(lambda: answer_with(launcher.unseen_s < 60))
    return launcher


async def start_engine(launcher: Launcher, asked: LaunchRequest, begin: Begin, started: list[Engine]) -> Engine | None:
    """Start an engine, trying again until its machine is there; return the engine, or None where `begin` refuses.

    started: the list to which the engine is added.
    """
    while True:
        try:
            engine = await launcher.start(asked, begin)
        except NoMachineYet:
            continue
        if engine is not None:
            started.append(engine)
        return engine


def begin_with_script(script: str, generation: int = 1, spots: list[LaunchPlace] | None = None) -> Begin:
    async def begin(spot: LaunchPlace) -> LaunchSpec | None:
        if spots is not None:
            spots.append(spot)
        command = [sys.executable, "-u", "-c", script]
        return LaunchSpec(generation, spot.address, command, {"PATH": "/usr/bin:/bin"}, spot.public_key)

    return begin


def is_alive(pid: int | None) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def answer_with(value: bool) -> bool:
    return value


async def wait_until_listed(launcher: Launcher, *engines: Engine) -> None:
    """Wait until the launcher lists exactly these engines."""
    await until(lambda: answer_with(sorted(launcher.running().values(), key=str) == sorted(engines, key=str)))


async def test_an_engine_runs_where_its_launcher_said_and_in_a_session_of_its_own(
    launcher: Launcher, make_request: Callable[[str, int], LaunchRequest], started_engines: list[Engine]
) -> None:
    spots: list[LaunchPlace] = []
    engine = await start_engine(
        launcher, make_request("replica_x", 1), begin_with_script(OBEYS, 1, spots), started_engines
    )
    assert engine is not None and engine.pid is not None and is_alive(engine.pid)
    assert (engine.address, engine.generation) == (spots[0].address, 1)
    assert engine.address.startswith("tcp://") and spots[0].public_key is not None
    assert (Path(spots[0].link_dir) / "allowed").read_text() == f"{KEY}\n"
    assert os.getsid(engine.pid) != os.getsid(0)
    await wait_until_listed(launcher, engine)


async def test_no_second_engine_of_a_replica_is_started(
    launcher: Launcher,
    make_launcher: Callable[[], Launcher],
    make_request: Callable[[str, int], LaunchRequest],
    started_engines: list[Engine],
) -> None:
    other = await open_launcher(make_launcher)
    engine = await start_engine(launcher, make_request("replica_x", 1), begin_with_script(OBEYS), started_engines)
    assert (
        await start_engine(launcher, make_request("replica_x", 2), begin_with_script(OBEYS, 2), started_engines) is None
    )
    assert await start_engine(other, make_request("replica_x", 2), begin_with_script(OBEYS, 2), started_engines) is None
    assert engine is not None
    await wait_until_listed(other, engine)
    await other.close()


async def test_two_launchers_start_a_replica_at_most_once(
    launcher: Launcher,
    make_launcher: Callable[[], Launcher],
    make_request: Callable[[str, int], LaunchRequest],
    started_engines: list[Engine],
) -> None:
    other = await open_launcher(make_launcher)
    for number in range(3):
        asked, script = make_request(f"replica_{number}", 1), begin_with_script(OBEYS)
        attempts = [start_engine(each, asked, script, started_engines) for each in (launcher, other)]
        engines = await asyncio.gather(*attempts, return_exceptions=True)
        assert sum(isinstance(each, Engine) for each in engines) <= 1, engines
    assert (
        len({engine.pid for engine in started_engines})
        == len({engine.replica_id for engine in started_engines})
        == len(started_engines)
    )
    await other.close()


async def test_a_begin_that_refuses_or_raises_starts_no_engine_and_the_next_start_succeeds(
    launcher: Launcher, make_request: Callable[[str, int], LaunchRequest], started_engines: list[Engine]
) -> None:
    async def refuse(spot: LaunchPlace) -> LaunchSpec | None:
        return None

    async def fail(spot: LaunchPlace) -> LaunchSpec | None:
        raise ConnectionError("the database is away")

    assert await start_engine(launcher, make_request("replica_x", 1), refuse, started_engines) is None
    with pytest.raises(ConnectionError):
        await start_engine(launcher, make_request("replica_x", 1), fail, started_engines)
    assert launcher.running() == {}
    assert (
        await start_engine(launcher, make_request("replica_x", 1), begin_with_script(OBEYS), started_engines)
        is not None
    )


@pytest.mark.parametrize(("script", "code"), [(OBEYS, 7), (DEFIES, -signal.SIGKILL)], ids=["obeys", "defies"])
async def test_an_engine_is_asked_to_end_and_killed_when_its_time_is_over(
    script: str,
    code: int,
    launcher: Launcher,
    make_request: Callable[[str, int], LaunchRequest],
    started_engines: list[Engine],
) -> None:
    told = asyncio.Queue[EngineEnd]()
    launcher.watch(told.put_nowait)
    engine = await start_engine(launcher, make_request("replica_x", 1), begin_with_script(script), started_engines)
    assert engine is not None
    await wait_until_listed(launcher, engine)
    await asyncio.sleep(0.5)  # it arranges what a signal does
    await launcher.stop(engine, 30.0 if script == OBEYS else 0.2)
    assert not is_alive(engine.pid) and launcher.running() == {}
    ended = await asyncio.wait_for(told.get(), PATIENCE_S)
    assert (ended.replica_id, ended.generation, ended.returncode, ended.last_lines) == ("replica_x", 1, code, "up")


async def test_an_engine_that_ends_before_its_launcher_can_watch_it_says_how(
    launcher: Launcher, make_request: Callable[[str, int], LaunchRequest], started_engines: list[Engine]
) -> None:
    told = asyncio.Queue[EngineEnd]()
    launcher.watch(told.put_nowait)

    async def begin(spot: LaunchPlace) -> LaunchSpec | None:
        return LaunchSpec(
            1, spot.address, ["/bin/sh", "-c", "echo gone; exit 3"], {"PATH": "/usr/bin:/bin"}, spot.public_key
        )

    assert await start_engine(launcher, make_request("replica_x", 1), begin, started_engines) is not None
    ended = await asyncio.wait_for(told.get(), PATIENCE_S)
    assert msgspec.structs.astuple(ended) == ("replica_x", 1, 3, "gone")
    await wait_until_listed(launcher)


async def test_an_engine_that_ends_by_itself_says_how_and_its_next_start_is_another_generation(
    launcher: Launcher, make_request: Callable[[str, int], LaunchRequest], started_engines: list[Engine]
) -> None:
    told = asyncio.Queue[EngineEnd]()
    launcher.watch(told.put_nowait)
    assert (
        await start_engine(launcher, make_request("replica_x", 1), begin_with_script(FAILS), started_engines)
        is not None
    )
    ended = await asyncio.wait_for(told.get(), PATIENCE_S)
    assert msgspec.structs.astuple(ended) == ("replica_x", 1, 78, "no such device")
    await wait_until_listed(launcher)
    engine = await start_engine(launcher, make_request("replica_x", 2), begin_with_script(OBEYS, 2), started_engines)
    assert engine is not None and engine.generation == 2
    await wait_until_listed(launcher, engine)


async def test_engines_outlive_their_launcher_and_the_next_one_sees_and_ends_them(
    make_launcher: Callable[[], Launcher],
    make_request: Callable[[str, int], LaunchRequest],
    started_engines: list[Engine],
) -> None:
    first = await open_launcher(make_launcher)
    engines = [
        await start_engine(first, make_request(f"replica_{n}", 1), begin_with_script(OBEYS), started_engines)
        for n in range(2)
    ]
    assert len({each.address for each in engines if each is not None}) == 2
    await first.close()
    assert all(each is not None and is_alive(each.pid) for each in engines)
    second = await open_launcher(make_launcher)
    await wait_until_listed(second, *(each for each in engines if each is not None))
    for each in engines:
        assert each is not None
        await second.stop(each, 30.0)
        assert not is_alive(each.pid)
    second.release(set())
    await second.close()
