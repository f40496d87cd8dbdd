"""Children: restarted with backoff, stopped in order within a bound, never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway.serve.supervisor import Child, ChildRestarted, Exited, RestartPolicy, stop_children
from gateway.support.process import bound_logs
from tests.installation.waiting import wait_until as wait_for
from tests.patience import PATIENCE_S

POLITE = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: exit(print("finished")))
print("up", flush=True)
time.sleep(60)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("up", flush=True)
time.sleep(60)
"""


TALKER = """
import time
while True:
    print("x" * 99, flush=True)
    time.sleep(0.005)
"""


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def test_waits_twice_as_long_after_each_failure_and_starts_over_after_a_good_run(tmp_path: Path) -> None:
    clock = Clock()
    policy = RestartPolicy(first_delay_s=1, max_delay_s=3, healthy_s=30)
    child = Child("child", python("raise SystemExit(7)"), {}, tmp_path / "log", policy=policy, clock=clock)
    child.start()
    delays = []
    for _ in range(4):
        exited = wait_for(child.poll)
        assert isinstance(exited, Exited) and exited.returncode == 7
        delays.append(exited.delay_s)
        clock.now += exited.delay_s - 0.01
        assert child.poll() is None, "not before its time"
        clock.now += 0.01
        assert isinstance(child.poll(), ChildRestarted)
    assert delays == [1, 2, 3, 3]

    clock.now += 30
    exited = wait_for(child.poll)
    assert isinstance(exited, Exited) and (exited.failures, exited.delay_s) == (1, 1)


def test_an_exit_by_a_signal_is_restarted_too_and_says_which(tmp_path: Path) -> None:
    child = Child("engine", python("import time; time.sleep(60)"), {}, tmp_path / "log", policy=RestartPolicy(0.01))
    first = child.start()
    os.kill(first, signal.SIGKILL)
    assert "engine ended (SIGKILL)" in str(wait_for(child.poll))
    started = wait_for(child.poll)
    assert isinstance(started, ChildRestarted) and started.pid != first
    child.kill()
    assert child.ended()


def test_log_tail_holds_what_the_latest_process_wrote_and_nothing_older(tmp_path: Path) -> None:
    log = tmp_path / "log" / "child.log"
    child = Child("child", python("print('first')"), {}, log)
    child.start()
    wait_for(child.ended)
    again = Child("child", python("print('second'); print('third')"), {}, log)
    again.start()
    wait_for(again.ended)
    assert again.log_tail() == "second\nthird"
    assert log.read_text() == "first\nsecond\nthird\n"


def test_a_log_stays_bounded_while_its_process_writes_on(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    child = Child("child", python(TALKER), {}, log)
    child.start()
    try:
        wait_for(lambda: log.stat().st_size > 2000)
        bound_logs(tmp_path, max_bytes=2000)
        assert (tmp_path / "child.log.1").stat().st_size > 2000
        assert wait_for(child.log_tail).startswith("xxx"), "the tail goes on after the cut"
        bound_logs(tmp_path, max_bytes=1 << 20)
        assert log.stat().st_size > 0, "one within its bound is left alone"
    finally:
        child.kill()


def test_a_child_gets_its_environment_and_descriptors_and_a_session_of_its_own(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    script = f"import os; os.write({writer}, f'{{os.getsid(0) == os.getpid()}} {{sorted(os.environ)}}'.encode())"
    child = Child("child", python(script), {"ONLY": "1"}, tmp_path / "log", pass_fds=[writer])
    child.start()
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    wait_for(child.ended)
    assert said.startswith("True ['") and "'ONLY'" in said and "'PATH'" not in said


def test_stopping_lets_a_child_finish_and_kills_only_the_one_that_outstays_its_grace(tmp_path: Path) -> None:
    children = [
        Child("polite", python(POLITE), {}, tmp_path / "polite.log"),
        Child("stubborn", python(STUBBORN), {}, tmp_path / "stubborn.log"),
    ]
    for child in children:
        child.start()
        wait_for(child.log_tail)
    assert stop_children(children, 0.5, lambda: False) == ["stubborn"]
    assert children[0].log_tail() == "up\nfinished"
    assert all(child.ended() for child in children)


def test_haste_cuts_the_grace_short(tmp_path: Path) -> None:
    child = Child("stubborn", python(STUBBORN), {}, tmp_path / "log")
    child.start()
    wait_for(child.log_tail)
    started = time.monotonic()
    assert stop_children([child], 2 * PATIENCE_S, lambda: True) == ["stubborn"]
    assert time.monotonic() - started < PATIENCE_S


def test_kill_9_of_the_supervisor_leaves_no_child(tmp_path: Path) -> None:
    script = (
        "import pathlib, sys, time; from gateway.serve.supervisor import Child; "
        "child = Child('child', [sys.executable, '-c', 'import time; time.sleep(60)'], {}, pathlib.Path(sys.argv[1])); "
        "print(child.start(), flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "log")], stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        supervisor.kill()
    wait_for(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.parametrize(("failures", "delay_s"), [(1, 0.5), (2, 1), (3, 2), (7, 30), (10_000, 30)])
def test_the_delay_doubles_up_to_its_bound(failures: int, delay_s: float) -> None:
    assert RestartPolicy().delay_s(failures) == delay_s
