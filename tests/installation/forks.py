"""Processes forked from a server that has imported everything: they start without a second of imports."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from tests.installation.networks import enter
from tests.installation.processes import ChildProcess

PRELOADED = ["__main__", "tests.installation.gateway_main", "gateway.assembly.app", "gateway.agent.run"]
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(PRELOADED)


class Program(Protocol):
    """A function like a program's `main`, which returns the exit code."""

    def __call__(self, *arguments: str) -> int: ...


class ForkedProcess(ChildProcess):
    """A `ChildProcess` that runs a function of a module instead of a command.

    arguments: the arguments of the function.
    env: all of the environment, as for a program.
    network: the name of a network namespace in which the process runs.
    """

    def __init__(self, program: Program, *arguments: str, log: Path, env: Mapping[str, str], network: str = "") -> None:
        super().__init__((), log=log, env=env)
        self._values = (program, arguments, str(log), dict(env), network)

    def start(self) -> None:
        """Start the process in a process group of its own, without standard input."""
        self.popen = _Forked(_run, self._values)


class _Forked:
    """A forked process, with the methods of `subprocess.Popen` that `ChildProcess` uses."""

    def __init__(self, run: Callable[..., None], values: tuple[object, ...]) -> None:
        self._process = FORKS.Process(target=run, args=values, daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        assert code is not None, f"it has not ended within {timeout} s"
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(program: Program, arguments: tuple[str, ...], log: str, env: dict[str, str], network: str) -> None:
    os.setsid()
    if network:
        enter(network)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(env)
    sys.exit(program(*arguments))
