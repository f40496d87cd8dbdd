"""Engines as processes of this host, which outlive the agent that started them.

The process of an engine has a file, `<folder>/<replica>.lock`, that the process holds locked (flock(2)) for as long as
it lives: the descriptor is inherited. So no second engine of a replica can be started, by whatever agent, and an agent
that comes later finds the engines that live. The file holds the number of the start, the address, and the number of the
process.

Knows nothing of rows, models and health.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from gateway.agent.launcher import Ended, Engine, Spec
from gateway.domain.pools.addresses import key_file_of, socket_of
from gateway.support.process import last_lines, make_private_folder, open_log

NUM_LAST_LINES = 10
_SUFFIX = ".lock"
_MAX_NOTE_BYTES = 4096


class _Note(msgspec.Struct, frozen=True):
    """The first line of a lock file. The second line is the number of the process, once there is one."""

    generation: int
    """The number of the start."""
    address: str
    """The endpoint or the URL of the engine's socket."""


class _Process(msgspec.Struct):
    """A process that is watched."""

    engine: Engine
    pidfd: int
    """The descriptor by which the event loop notices the end of the process."""
    log_start: int
    """The length of the log, in bytes, when the process began."""
    popen: subprocess.Popen[bytes] | None
    """None where this agent did not start the process."""
    ended: asyncio.Event


class LocalLauncher:
    """The `Launcher` of this host.

    folder: the folder of the lock files.
    log_dir: the folder in which each replica writes `engine-<id>.log`.
    """

    def __init__(self, folder: Path, log_dir: Path) -> None:
        self._folder = folder
        self._log_dir = log_dir
        self._processes: dict[tuple[str, int], _Process] = {}
        self._ended: Callable[[Ended], None] = lambda ended: None
        make_private_folder(folder)

    async def start(self, replica_id: str, begin: Callable[[], Awaitable[Spec | None]]) -> Engine | None:
        """Start an engine under the replica's lock, as `Launcher.start`."""
        descriptor = os.open(self._path(replica_id), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _try_lock(descriptor, fcntl.LOCK_EX):
                return None
            os.ftruncate(descriptor, 0)
            spec = await begin()
            return None if spec is None else self._spawn(replica_id, spec, descriptor)
        finally:
            os.close(descriptor)

    def _spawn(self, replica_id: str, spec: Spec, descriptor: int) -> Engine:
        note = msgspec.json.encode(_Note(spec.generation, spec.address)) + b"\n"
        os.pwrite(descriptor, note, 0)

        def note_pid() -> None:
            # In the child: it has its number down before it is anything else, whatever becomes of the agent.
            os.pwrite(descriptor, b"%d\n" % os.getpid(), len(note))

        with open_log(self._log(replica_id)) as log:
            log_start = os.fstat(log.fileno()).st_size
            popen = subprocess.Popen(
                list(spec.command),
                env=dict(spec.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[descriptor],
                start_new_session=True,
                preexec_fn=note_pid,
            )
        engine = Engine(replica_id, spec.generation, spec.address, popen.pid)
        self._observe(engine, log_start, popen)
        return engine

    async def stop(self, engine: Engine, grace_s: float) -> None:
        """End an engine by SIGTERM, and by SIGKILL after grace_s."""
        process = self._processes.get((engine.replica_id, engine.generation))
        if process is None:
            return
        # By a descriptor of the process: its number may be another process' by now.
        _signal(process.pidfd, signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await process.ended.wait()
        except TimeoutError:
            _signal(process.pidfd, signal.SIGKILL)
            await process.ended.wait()

    def running(self) -> dict[str, Engine]:
        """Return the engines whose lock files are held, by replica."""
        found = {}
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            engine = self._alive(path)
            if engine is not None:
                found[engine.replica_id] = engine
        return found

    def watch(self, ended: Callable[[Ended], None]) -> None:
        """Call `ended` for each engine that ends from now on, as `Launcher.watch`."""
        self._ended = ended

    def forget(self, replica_ids: set[str]) -> None:
        """Remove the lock files and logs of all replicas but these, as far as none of their engines lives."""
        for path in self._folder.glob(f"*{_SUFFIX}"):
            replica_id = path.name.removesuffix(_SUFFIX)
            if replica_id not in replica_ids and self._alive(path) is None:
                log = self._log(replica_id)
                for each in (path, log, log.with_name(f"{log.name}.1")):
                    each.unlink(missing_ok=True)

    def close(self) -> None:
        """Watch no process any more; engines live on."""
        for process in self._processes.values():
            self._unwatch(process)
        self._processes.clear()

    def _alive(self, path: Path) -> Engine | None:
        """Return the engine whose process holds this lock file."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        replica_id = path.name.removesuffix(_SUFFIX)
        try:
            if _try_lock(descriptor, fcntl.LOCK_SH):
                return None
            lines = os.pread(descriptor, _MAX_NOTE_BYTES, 0).splitlines()
        finally:
            os.close(descriptor)
        try:
            note = msgspec.json.decode(lines[0], type=_Note)
            pid = int(lines[1])
        except (IndexError, ValueError):
            return Engine(replica_id, 0, "", None)  # somebody is about to start it
        engine = Engine(replica_id, note.generation, note.address, pid)
        if (replica_id, note.generation) not in self._processes:
            self._observe(engine, 0, None)
        return engine

    def _observe(self, engine: Engine, log_start: int, popen: subprocess.Popen[bytes] | None) -> None:
        """Notice the end of a process, also of one that is not a child of this one."""
        assert engine.pid is not None
        try:
            pidfd = os.pidfd_open(engine.pid)
        except ProcessLookupError:
            return  # it ended just now; its lock is free the next time
        process = _Process(engine, pidfd, log_start, popen, asyncio.Event())
        self._processes[engine.replica_id, engine.generation] = process
        asyncio.get_running_loop().add_reader(pidfd, self._has_ended, process)

    def _has_ended(self, process: _Process) -> None:
        engine = process.engine
        if process.popen is not None:  # not waited for yet, so that the number of its group is still its own
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.popen.pid, signal.SIGKILL)  # processes that it left behind
        returncode = process.popen.wait() if process.popen is not None else None
        self._unwatch(process)
        del self._processes[engine.replica_id, engine.generation]
        for path in _files_of(engine.address):
            path.unlink(missing_ok=True)
        lines = last_lines(self._log(engine.replica_id), NUM_LAST_LINES, process.log_start)
        process.ended.set()
        self._ended(Ended(engine.replica_id, engine.generation, returncode, lines))

    def _unwatch(self, process: _Process) -> None:
        asyncio.get_running_loop().remove_reader(process.pidfd)
        os.close(process.pidfd)
        if process.popen is not None:
            process.popen.returncode = process.popen.returncode or 0  # it lives on, and is nobody's to wait for

    def _path(self, replica_id: str) -> Path:
        return self._folder / f"{replica_id}{_SUFFIX}"

    def _log(self, replica_id: str) -> Path:
        return self._log_dir / f"engine-{replica_id}.log"


def _files_of(address: str) -> list[Path]:
    """Return the files that one start of an engine left: its socket, and the key of a server of another maker."""
    if (socket := socket_of(address)) is not None:
        return [Path(socket), Path(key_file_of(socket))]
    return [Path(address.removeprefix("ipc://"))] if address.startswith("ipc://") else []


def _try_lock(descriptor: int, kind: int) -> bool:
    """Take a lock; return False where somebody else's does not allow it. It goes with the descriptor."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _signal(pidfd: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, OSError):
        signal.pidfd_send_signal(pidfd, signum)
