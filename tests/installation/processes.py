"""Child processes of tests: each can be killed, frozen, ended in order, and started again as it was."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tests.patience import PATIENCE_S


class Running(Protocol):
    """The methods of a running process that `ChildProcess` uses, as `subprocess.Popen` has them."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


class ChildProcess:
    """A program that a test can start repeatedly with the same command.

    log: the file that its output is appended to; None leaves the output with the tests' own.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path | None = None,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Prepare the program.

        pass_fds: the file descriptors of this process that the program inherits. env: the environment variables of
        the program; None: those of this process.
        """
        self.log = log
        self.popen: Running | None = None
        """The process that runs, or None."""
        self._command = command
        self._env = env
        self._pass_fds = pass_fds

    def start(self) -> None:
        """Start the process in a process group of its own, without standard input."""
        with contextlib.nullcontext() if self.log is None else self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                self._command,
                env=self._env,
                pass_fds=self._pass_fds,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=None if log is None else subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self.popen is not None
        return self.popen.pid

    def kill(self) -> None:
        """Kill the process with SIGKILL; do nothing when it does not run."""
        if self.popen is not None:
            self.popen.kill()
            self.popen.wait()
            self.popen = None

    def terminate(self) -> int:
        """Send SIGTERM, and return the exit code once it has ended."""
        assert self.popen is not None
        self.popen.send_signal(signal.SIGTERM)
        code = self.popen.wait(PATIENCE_S)
        self.popen = None
        return code

    def check(self) -> None:
        """Check that the process has not ended by itself.

        Raises AssertionError: when it has, with its output.
        """
        assert self.popen is None or self.popen.poll() is None, self.output()

    def output(self) -> str:
        """Return the text of the process's log."""
        return "" if self.log is None or not self.log.exists() else self.log.read_text(errors="replace")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the process (SIGSTOP) until the context is left."""
        with frozen(self.pid):
            yield


@contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """Freeze processes (SIGSTOP) until the context is left; the kernel buffers what is sent to them."""
    _signal(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(pids, signal.SIGCONT)


def _signal(pids: tuple[int, ...], signum: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


def parent(pid: int) -> int:
    """Return the id of a process's parent, by proc(5).

    Raises OSError: when this one has ended.
    """
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children(pid: int) -> list[int]:
    """Return the ids of running child processes of a process."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if parent(int(entry.name)) == pid:
                found.append(int(entry.name))
    return found


def free_port() -> int:
    """Return a loopback port that nobody listens on at present."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
