"""The fleet of processes: which ends fail a start, which processes are restarted, and what a stop does not wait for."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.postgres.embedded import EmbeddedPostgres
from gateway.serve.fleet import Fleet, StartFailed
from gateway.serve.listener import Listener
from gateway.serve.stop import StopRequested, StopSignals
from gateway.serve.supervisor import Child
from gateway.serve.terminal import Terminal
from tests.patience import PATIENCE_S


class SlowPostgres(EmbeddedPostgres):
    """A database that died and whose next start replays its log for a minute."""

    def alive(self) -> bool:
        return False

    def start(self) -> str:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        time.sleep(60)
        raise AssertionError("nothing interrupted the start")


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Child]:
    child = Child("worker", [sys.executable, "-c", "import time; time.sleep(60)"], {}, tmp_path / "worker.log")
    yield child
    child.kill()


def test_a_stop_does_not_wait_for_a_database_that_starts_again(tmp_path: Path, worker: Child) -> None:
    listener = Listener("127.0.0.1", 0)
    agent = Child("agent", [sys.executable, "-c", "pass"], {}, tmp_path / "log")
    fleet = Fleet(SlowPostgres(tmp_path), agent, worker, [], listener, Terminal())
    try:
        with StopSignals() as stop, pytest.raises(StopRequested):
            fleet.tend(stop)
    finally:
        listener.close()
    assert agent.pid is None and worker.pid is None


def test_a_child_that_cannot_run_as_configured_ends_the_start_at_once_in_its_own_words(
    tmp_path: Path, worker: Child, capsys: pytest.CaptureFixture[str]
) -> None:
    script = "import sys; print('agent: no such device', file=sys.stderr); print('bye'); sys.exit(78)"
    agent = Child("agent", [sys.executable, "-c", script], {}, tmp_path / "log")
    listener = Listener("127.0.0.1", 0)
    fleet = Fleet(None, agent, worker, [], listener, Terminal())
    try:
        with StopSignals() as stop, pytest.raises(StartFailed) as failed:
            fleet.start(stop)
            deadline = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline:
                fleet.tend(stop, starting=True)
                time.sleep(0.01)
    finally:
        listener.close()
        agent.kill()
    assert str(failed.value) == "no such device" and agent.failures == 1
    assert capsys.readouterr().err == "", "the caller says it, once"


def test_a_child_that_ran_before_is_restarted_whatever_its_exit_code(tmp_path: Path, worker: Child) -> None:
    agent = Child("agent", [sys.executable, "-c", "raise SystemExit(78)"], {}, tmp_path / "log")
    listener = Listener("127.0.0.1", 0)
    fleet = Fleet(None, agent, worker, [], listener, Terminal())
    try:
        with StopSignals() as stop:
            fleet.start(stop)
            deadline = time.monotonic() + PATIENCE_S
            while agent.failures < 2 and time.monotonic() < deadline:
                fleet.tend(stop)
                time.sleep(0.01)
    finally:
        listener.close()
        agent.kill()
    assert agent.failures == 2


def test_a_stop_between_two_children_starts_no_further_one(tmp_path: Path, worker: Child) -> None:
    agent = Child("agent", [sys.executable, "-c", "import time; time.sleep(60)"], {}, tmp_path / "log")
    listener = Listener("127.0.0.1", 0)
    fleet = Fleet(None, agent, worker, [], listener, Terminal())
    try:
        with StopSignals() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(StopRequested):
                fleet.start(stop)
    finally:
        listener.close()
        agent.kill()
    assert agent.pid is None and worker.pid is None
