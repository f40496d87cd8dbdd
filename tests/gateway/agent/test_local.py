"""Processes of this host: processes and files that a server leaves behind are removed with it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.agent.launcher import EngineEnd, LaunchPlace, LaunchRequest, LaunchSpec
from gateway.agent.listeners import SocketListener
from gateway.agent.local import LocalLauncher
from gateway.domain.pools.addresses import address_of_socket
from tests.installation.waiting import until


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def test_the_processes_and_files_that_a_server_leaves_go_with_it(tmp_path: Path) -> None:
    launcher, ended = (
        LocalLauncher(tmp_path / "replicas", tmp_path, SocketListener(tmp_path)),
        asyncio.Queue[EngineEnd](),
    )
    launcher.watch(ended.put_nowait)
    socket, left = tmp_path / "x-1.sock", tmp_path / "pid"
    key = tmp_path / "x-1.sock.key"
    script = f"touch {socket} {key}; sleep 600 & echo $! > {left}.new && mv {left}.new {left}; wait"

    async def begin(spot: LaunchPlace) -> LaunchSpec:
        return LaunchSpec(1, address_of_socket(str(socket)), ["/bin/sh", "-c", script], {"PATH": "/usr/bin:/bin"})

    engine = await launcher.start(LaunchRequest("replica_x", 1, "", ""), begin)
    assert engine is not None
    await until(lambda: answer_with(left.exists()))
    pid = int(left.read_text())
    assert is_alive(pid)
    await launcher.stop(engine, 0.0)
    assert (await ended.get()).generation == 1
    await until(lambda: answer_with(not is_alive(pid)))
    assert not socket.exists() and not key.exists()
    await launcher.close()


async def answer_with(value: bool) -> bool:
    return value
