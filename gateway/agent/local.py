"""Engines as processes of this host, which outlive the agent that started them.

The process of an engine has a file, `<folder>/<replica>.lock`, that the process holds locked (flock(2)) for as long as
it lives: the descriptor is inherited. So no second engine of a replica can be started, by whatever agent, and an agent
that comes later finds the engines that live. The file holds the number of the start, the address, and the number of the
process.

Several launchers may share a folder, each in a process of its own: the lock decides which of them starts an engine.

Knows nothing of rows, models and health.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import math
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec

from gateway.agent.launcher import Begin, CannotStart, Engine, EngineEnd, LaunchRequest, LaunchSpec
from gateway.agent.listeners import Listener
from gateway.domain.pools.addresses import key_file_of, socket_of
from gateway.domain.pools.capacity import Node
from gateway.support.host import port_of
from gateway.support.process import last_lines, make_private_folder, open_log

NUM_LAST_LINES = 10
_SUFFIX = ".lock"
_MAX_NOTE_BYTES = 4096
_DOOR_NAME = "door"
_DOOR_PAUSE_S = 0.02

_APART = """sh -c 'echo $$ >>"$0"; exec "$@"' "$@" & exec 2>/dev/null; wait $!"""
"""A shell script: another shell writes its process id into a file and becomes the program; the first ends with it.

A signal to the children of a process ends the first shell, and leaves the program alive."""
_SIGNALED = 128
"""The number to which a shell adds a signal's number, for the exit code of a program that the signal ended."""
_PID_PAUSE_S, _PID_WAIT_S = 0.005, 10.0


class _Note(msgspec.Struct, frozen=True):
    """The first line of a lock file. The second line is the number of the process, once there is one."""

    generation: int
    """The number of this start among the starts of the replica; a later start has a higher one."""
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
    """The child that was started; None where another process started the engine."""
    ended: asyncio.Event


class LocalLauncher:
    """The `Launcher` of this host.

    folder: the folder of the lock files.
    log_dir: the folder in which each replica writes `engine-<id>.log`.
    apart: True: engines are started below a shell, so that their end does not depend on a signal to this process's
    children.
    """

    unseen_s = 0.0

    def __init__(self, folder: Path, log_dir: Path, listener: Listener, *, apart: bool = False) -> None:
        self._folder = folder
        self._log_dir = log_dir
        self._listener = listener
        self._apart = apart
        self._processes: dict[tuple[str, int], _Process] = {}
        self._ended: Callable[[EngineEnd], None] = lambda ended: None
        make_private_folder(folder)

    async def admit(self, public_keys: Sequence[str]) -> None:
        """Write the list of keys whose holders engines on TCP allow to connect, as `Launcher.admit`."""
        await asyncio.to_thread(self._listener.admit, public_keys)

    async def start(self, ask: LaunchRequest, begin: Begin) -> Engine | None:
        """Start an engine under the replica's lock, as `Launcher.start`."""
        descriptor = os.open(self._path(ask.replica_id), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _try_lock(descriptor, fcntl.LOCK_EX):
                return None
            os.ftruncate(descriptor, 0)
            async with self._only_one_chooses():
                with _as_refusal():
                    place = self._listener.choose_place(ask, self._ports())
                spec = await begin(place)
                with _as_refusal():
                    return None if spec is None else await self._spawn(ask.replica_id, spec, descriptor)
        finally:
            os.close(descriptor)

    @asynccontextmanager
    async def _only_one_chooses(self) -> AsyncIterator[None]:
        """Lock the folder, so that no other engine of it chooses a port until this one's port is written down."""
        descriptor = os.open(self._folder / _DOOR_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _try_lock(descriptor, fcntl.LOCK_EX):  # noqa: ASYNC110 - of another process
                await asyncio.sleep(_DOOR_PAUSE_S)
            yield
        finally:
            os.close(descriptor)

    def _ports(self) -> set[int]:
        """Return the ports of the engines that live, some of which may not listen yet."""
        ports = {port_of(engine.address) for engine in self.running().values()}
        return {port for port in ports if port is not None}

    async def _spawn(self, replica_id: str, spec: LaunchSpec, descriptor: int) -> Engine:
        """Start the process of an engine, which inherits the descriptor of the replica's lock file.

        Raises OSError: when the log cannot be opened or the program cannot be run.
        Raises CannotStart: when the process ends before it is known.
        """
        log_start, popen = self._popen(replica_id, spec, descriptor)
        pid = await self._pid_of(popen, descriptor) if self._apart else popen.pid
        engine = Engine(replica_id, spec.generation, spec.address, pid)
        self._observe(engine, log_start, popen)
        return engine

    def _popen(self, replica_id: str, spec: LaunchSpec, descriptor: int) -> tuple[int, subprocess.Popen[bytes]]:
        """Start a process. Return the place in its log at which it begins to write, and the process.

        descriptor: the open lock file, which the process inherits.

        Raises OSError: when the log cannot be opened or the program cannot be run.
        """
        note = msgspec.json.encode(_Note(spec.generation, spec.address)) + b"\n"
        os.pwrite(descriptor, note, 0)

        def note_pid() -> None:
            # In the child: it has its number down before it is anything else, whatever becomes of the agent.
            os.pwrite(descriptor, b"%d\n" % os.getpid(), len(note))

        before = ["/bin/sh", "-c", _APART, "sh", str(self._path(replica_id))] if self._apart else []
        with open_log(self._log(replica_id)) as log:
            log_start = os.fstat(log.fileno()).st_size
            popen = subprocess.Popen(
                [*before, *spec.command],
                env=dict(spec.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[descriptor],
                start_new_session=True,
                preexec_fn=None if self._apart else note_pid,
            )
        return log_start, popen

    async def _pid_of(self, shell: subprocess.Popen[bytes], descriptor: int) -> int:
        """Return the process number of the program that a shell starts.

        descriptor: the open lock file, in which the program notes its number.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PID_WAIT_S):
                while _pid_in(_read(descriptor)) is None and shell.poll() is None:  # noqa: ASYNC110 - of a process
                    await asyncio.sleep(_PID_PAUSE_S)
        pid = _pid_in(_read(descriptor))
        if pid is None:
            raise CannotStart("its process was not made")
        return pid

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
            engine = self._engine_of_lock(path)
            if engine is not None:
                found[engine.replica_id] = engine
        return found

    def nodes(self) -> list[Node]:
        """Return an empty list: this launcher has its own host alone."""
        return []

    def watch(self, ended: Callable[[EngineEnd], None]) -> None:
        """Call `ended` for each engine that ends from now on, as `Launcher.watch`."""
        self._ended = ended

    def forget(self, replica_ids: set[str]) -> None:
        """Remove the lock files and logs of replicas without a live engine, as `Launcher.forget`.

        replica_ids: the replicas whose files stay.
        """
        for path in self._folder.glob(f"*{_SUFFIX}"):
            replica_id = path.name.removesuffix(_SUFFIX)
            if replica_id not in replica_ids and self._engine_of_lock(path) is None:
                log = self._log(replica_id)
                for each in (path, log, log.with_name(f"{log.name}.1")):
                    each.unlink(missing_ok=True)

    def release(self, replica_ids: set[str], held_s: float = math.inf) -> None:
        """Do nothing: ports and memory of an engine of this host are free once it has ended."""

    async def close(self, *, is_superseded: bool = False) -> None:
        """Stop watching processes; engines live on.

        is_superseded: no difference for this launcher.
        """
        for process in self._processes.values():
            self._unwatch(process)
        self._processes.clear()

    def _engine_of_lock(self, path: Path) -> Engine | None:
        """Return the engine whose process holds this lock file."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        replica_id = path.name.removesuffix(_SUFFIX)
        try:
            if _try_lock(descriptor, fcntl.LOCK_SH):
                return None
            text = _read(descriptor)
        finally:
            os.close(descriptor)
        try:
            note, pid = msgspec.json.decode(text.split(b"\n")[0], type=_Note), _pid_in(text)
        except ValueError:
            pid = None
        if pid is None:
            return Engine(replica_id, 0, "", None)  # somebody is about to start it
        engine = Engine(replica_id, note.generation, note.address, pid)
        if (replica_id, note.generation) not in self._processes:
            self._observe(engine, 0, None)
        return engine

    def _observe(self, engine: Engine, log_start: int, popen: subprocess.Popen[bytes] | None) -> None:
        """Watch for the end of a process, also of one that is not a child of this one.

        log_start: the place in the log at which the process began to write. popen: None for a process that another
        agent has started.
        """
        assert engine.pid is not None
        try:
            pidfd = os.pidfd_open(engine.pid)
        except ProcessLookupError:  # it ended just now; its lock is free the next time
            if popen is not None:  # its starter is told after it has learned of the start
                asyncio.get_running_loop().call_soon(self._tell_end, engine, log_start, self._reap(popen))
            return
        process = _Process(engine, pidfd, log_start, popen, asyncio.Event())
        self._processes[engine.replica_id, engine.generation] = process
        asyncio.get_running_loop().add_reader(pidfd, self._has_ended, process)

    def _has_ended(self, process: _Process) -> None:
        engine = process.engine
        returncode = self._reap(process.popen) if process.popen is not None else None
        self._unwatch(process)
        del self._processes[engine.replica_id, engine.generation]
        process.ended.set()
        self._tell_end(engine, process.log_start, returncode)

    def _reap(self, popen: subprocess.Popen[bytes]) -> int:
        """Return how a child ended, once it has, and kill the processes that it left behind."""
        os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOWAIT)  # until it is reaped, its group's number is its own
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(popen.pid, signal.SIGKILL)
        returncode = popen.wait()
        return _SIGNALED - returncode if self._apart and returncode > _SIGNALED else returncode

    def _tell_end(self, engine: Engine, log_start: int, returncode: int | None) -> None:
        """Remove the files of an engine that has ended, and tell how it ended.

        log_start: the place in the log at which the process began to write. returncode: the exit status; None where it
        is not known.
        """
        for path in _files_of(engine.address):
            path.unlink(missing_ok=True)
        lines = last_lines(self._log(engine.replica_id), NUM_LAST_LINES, log_start)
        self._ended(EngineEnd(engine.replica_id, engine.generation, returncode, lines))

    def _unwatch(self, process: _Process) -> None:
        asyncio.get_running_loop().remove_reader(process.pidfd)
        os.close(process.pidfd)
        if process.popen is not None:
            process.popen.returncode = process.popen.returncode or 0  # it lives on, and is nobody's to wait for

    def _path(self, replica_id: str) -> Path:
        return self._folder / f"{replica_id}{_SUFFIX}"

    def _log(self, replica_id: str) -> Path:
        return self._log_dir / f"engine-{replica_id}.log"


@contextmanager
def _as_refusal() -> Iterator[None]:
    """Turn an error of this machine within the context into CannotStart."""
    try:
        yield
    except OSError as error:
        raise CannotStart(str(error)) from None


def _files_of(address: str) -> list[Path]:
    """Return the files that one start of an engine left: its socket, and the key of a server of another maker."""
    if (socket := socket_of(address)) is not None:
        return [Path(socket), Path(key_file_of(socket))]
    return [Path(address.removeprefix("ipc://"))] if address.startswith("ipc://") else []


def _read(descriptor: int) -> bytes:
    return os.pread(descriptor, _MAX_NOTE_BYTES, 0)


def _pid_in(text: bytes) -> int | None:
    """Return the number in the second line of a lock file; None where that is not whole yet."""
    lines = text.split(b"\n")
    return int(lines[1]) if len(lines) > 2 and lines[1].isdigit() else None


def _try_lock(descriptor: int, kind: int) -> bool:
    """Take a lock on an open file; return False if another process has it. The lock ends with the descriptor.

    kind: `fcntl.LOCK_EX` or `fcntl.LOCK_SH`.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _signal(pidfd: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, OSError):
        signal.pidfd_send_signal(pidfd, signum)
