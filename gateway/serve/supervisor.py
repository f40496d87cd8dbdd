"""Child processes that are kept running: restarted with backoff on any exit, stopped within a bound.

No threads and no event loop: the owner of a `Child` calls `poll` a few times a second. Every child leads its own
session, so that Ctrl-C in the terminal reaches only the supervisor, and dies with the supervisor however that ends.
Knows nothing about the children's work.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from gateway.support.accounts import Account, as_root
from gateway.support.process import die_with_parent, last_lines, open_log

POLL_INTERVAL_S = 0.05
FORCED_GRACE_S = 2.0


class RestartPolicy(msgspec.Struct, frozen=True):
    """The waits before restarts."""

    first_delay_s: float = 0.5
    """The wait after a first failure. The n-th failure in a row waits 2**(n-1) times as long."""
    max_delay_s: float = 30.0
    """The longest wait."""
    healthy_s: float = 30.0
    """Seconds after which a child that runs has proven itself: its next exit counts as a first failure again."""

    def delay_s(self, failures: int) -> float:
        """Return the seconds to wait after this many failures in a row (>= 1)."""
        return float(min(self.first_delay_s * 2 ** min(failures - 1, 30), self.max_delay_s))


class Exited(msgspec.Struct, frozen=True):
    """The report that a child ended by itself."""

    name: str
    returncode: int
    """The exit code; the negative number of a signal."""
    ran_s: float
    """Seconds for which the child ran."""
    failures: int
    """The number of failures in a row, without a healthy run between them."""
    delay_s: float
    """Seconds until the restart."""

    def __str__(self) -> str:
        how = f"code {self.returncode}" if self.returncode >= 0 else signal.Signals(-self.returncode).name
        return f"{self.name} ended ({how}) after {self.ran_s:.1f} s; restarting in {self.delay_s:.1f} s"


class ChildRestarted(msgspec.Struct, frozen=True):
    """The report that a child was started again."""

    name: str
    pid: int

    def __str__(self) -> str:
        return f"{self.name} restarted (pid {self.pid})"


class Child:
    """One supervised child process.

    log: the file that the process's output is appended to. env: the whole environment of the process. pass_fds: file
    descriptors that the process inherits. account: the user that the process runs as; None: the user of this process.
    clock: seconds on a monotonic clock.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        *,
        pass_fds: Sequence[int] = (),
        account: Account | None = None,
        policy: RestartPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.failures = 0
        self._command = list(command)
        self._env = dict(env)
        self._log = log
        self._pass_fds = tuple(pass_fds)
        self._as_user = {} if account is None else account.popen_arguments()
        self._policy = policy if policy is not None else RestartPolicy()
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._restart_at = 0.0
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """The id of the process; None where none runs."""
        return self._process.pid if self._process is not None else None

    def run_next(self, command: Sequence[str]) -> None:
        """Set the command for the next start of the process."""
        self._command = list(command)

    def start(self) -> int:
        """Start the process; returns its pid.

        The supervisor's main thread must call it: children die with the thread that started them.
        """
        assert self._process is None, f"{self.name} runs already"
        with open_log(self._log) as log, as_root():
            self._log_start = os.fstat(log.fileno()).st_size
            self._process = subprocess.Popen(
                self._command,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=self._pass_fds,
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGKILL),
                **self._as_user,
            )
        self._started_at = self._clock()
        return self._process.pid

    def poll(self) -> Exited | ChildRestarted | None:
        """Check for an exit, or restart the process when its delay is over. Return the event, or None."""
        now = self._clock()
        if self._process is None:
            return ChildRestarted(self.name, self.start()) if now >= self._restart_at else None
        returncode = self._process.poll()
        if returncode is None:
            return None
        self._process = None
        ran_s = now - self._started_at
        self.failures = 1 if ran_s >= self._policy.healthy_s else self.failures + 1
        delay_s = self._policy.delay_s(self.failures)
        self._restart_at = now + delay_s
        return Exited(self.name, returncode, ran_s, self.failures, delay_s)

    def log_tail(self, count: int = 10) -> str:
        """Return the last lines that the current or latest process wrote.

        count: the number of lines.
        """
        return last_lines(self._log, count, self._log_start)

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal, if the process runs."""
        if self._process is not None:
            self._process.send_signal(signum)

    def ended(self) -> bool:
        """Tell whether no process runs. Unlike `poll` this never restarts a process."""
        if self._process is not None and self._process.poll() is not None:
            self._process = None
        return self._process is None

    def kill(self) -> None:
        """Send SIGKILL to the process and to everything in its session."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


def stop_children(children: Sequence[Child], grace_s: float, forced: Callable[[], bool]) -> list[str]:
    """Send SIGTERM to all children, wait at most grace_s, and kill the rest. Return the names of the killed ones.

    When forced() becomes true, the children get SIGINT, by which servers stop at once, and FORCED_GRACE_S from then on.
    """
    for child in children:
        child.signal(signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    was_forced = False
    while not all(child.ended() for child in children) and time.monotonic() < deadline:
        if forced() and not was_forced:
            was_forced = True
            deadline = min(deadline, time.monotonic() + FORCED_GRACE_S)
            for child in children:
                child.signal(signal.SIGINT)
        time.sleep(POLL_INTERVAL_S)
    killed = [child.name for child in children if not child.ended()]
    for child in children:
        child.kill()
    return killed
