"""Processes that share the tests of one run: forked after its collection, they import and collect nothing again.

A plugin of the process that a run was started in. Each worker takes a group of tests at a time, in the order of the
collection, and runs it to its end; its reports appear here as if the tests had run here. A worker that dies fails the
test that it ran, and another one goes on with the rest of its group. The run ends with the files that took most
processor time, and the time for which workers had nothing to do. Knows nothing of what the tests share.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import signal
import sys
import time
import traceback
import types
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import pytest

WORKER_VARIABLE = "TEST_WORKER"
"""The environment variable with a worker's name, for the worker and the processes it starts."""

_DIE_WITH_PARENT = 1
"""The constant PR_SET_PDEATHSIG of prctl(2)."""

COLLECT_AFTER = 20_000
"""The objects that come, beyond those that go, before a worker's collector looks for cycles among them.

With Python's 700 it takes a tenth of the workers' processor time.
"""

NUM_DEAREST = 20
"""The number of files that the end of a run names."""

Group = list[int]
"""The indices of a group's tests among all tests of the run; one worker runs them in this order."""


def grouped(items: Iterable[pytest.Item], name_of: Callable[[pytest.Item], str]) -> list[Group]:
    """Return the tests of each group, with the groups in the order of their first tests."""
    groups: dict[str, Group] = {}
    for place, item in enumerate(items):
        groups.setdefault(name_of(item), []).append(place)
    return list(groups.values())


class Workers:
    """The worker processes of a session: they run its tests, and this process repeats their reports.

    name_of: returns the name of a test's group. num: the most workers at one time.
    """

    def __init__(self, config: pytest.Config, num: int, name_of: Callable[[pytest.Item], str]) -> None:
        self._config = config
        self._num = num
        self._name_of = name_of
        self._groups: deque[Group] = deque()
        """Groups that no worker has taken yet."""
        self._workers: dict[Connection, _Worker] = {}
        self._num_started = 0
        self._processor_s: Counter[str] = Counter()
        """Processor seconds by file, of its tests and of the processes that have ended meanwhile."""
        self._out_of_work_s: list[float] = []
        """The times at which workers found no group left."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.option.collectonly or not session.items:
            return None
        atexit.register(_end_at_once, session)
        self._groups.extend(grouped(session.items, self._name_of))
        gc.collect()
        gc.freeze()  # pages that no worker's collector writes to are shared by all of them
        gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])
        try:
            for _ in range(min(self._num, len(self._groups))):
                self._start(session)
            while self._workers:
                for connection in wait(list(self._workers)):
                    assert isinstance(connection, Connection)
                    self._listen(session, connection)
        finally:
            for worker in self._workers.values():
                worker.end()
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    def _start(self, session: pytest.Session) -> None:
        ours, theirs = Pipe()
        name = f"worker{self._num_started}"
        self._num_started += 1
        sys.stdout.flush()
        sys.stderr.flush()
        if not (pid := os.fork()):
            ours.close()
            for connection in self._workers:
                connection.close()
            _work(session, theirs, name)
        theirs.close()
        self._workers[ours] = _Worker(pid, name)

    def _listen(self, session: pytest.Session, connection: Connection) -> None:
        """Process one message of a worker, or its end."""
        worker = self._workers[connection]
        try:
            message, values = connection.recv()
        except (EOFError, ConnectionResetError):
            del self._workers[connection]
            connection.close()
            self._ended(session, worker)
            return
        if message == "next":
            is_over = session.shouldfail or session.shouldstop or not self._groups
            group = [] if is_over else self._groups.popleft()
            if not group:
                self._out_of_work_s.append(time.monotonic())
            worker.places += group
            connection.send(group)
        elif message == "start":
            (worker.running,) = values
            item = session.items[worker.running]
            self._config.hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        elif message == "finish":
            item = session.items[worker.places.popleft()]
            worker.running = None
            (spent_s,) = values
            self._processor_s[item.location[0]] += spent_s
            self._config.hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        elif message == "report":
            report = self._config.hook.pytest_report_from_serializable(config=self._config, data=values)
            self._config.hook.pytest_runtest_logreport(report=report)
        else:
            self._config.hook.pytest_warning_recorded.call_historic(kwargs=_warning(*values))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the files that took most processor time, and how long workers waited for the last one."""
        if not self._out_of_work_s:
            return
        terminalreporter.section(f"most processor time of {len(self._processor_s)} files")
        for path, seconds in self._processor_s.most_common(NUM_DEAREST):
            terminalreporter.write_line(f"{seconds:.1f}s {path}")
        idle_s = sum(max(self._out_of_work_s) - each for each in self._out_of_work_s)
        total_s = sum(self._processor_s.values())
        terminalreporter.write_line(f"{total_s:.1f}s in all; {idle_s:.1f}s in all without work at the end")

    def _ended(self, session: pytest.Session, worker: _Worker) -> None:
        """Report a dead worker's test as failed, and give the rest of its group to another worker.

        Raises RuntimeError: when the worker failed between tests.
        """
        code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if worker.running is not None:
            worker.places.remove(worker.running)
            item = session.items[worker.running]
            why = f"{worker.name} ended with {code} while it ran this test"
            crash = pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call")
            self._config.hook.pytest_runtest_logreport(report=crash)
        elif code:
            raise RuntimeError(f"{worker.name} ended with {code}")
        if worker.places and not (session.shouldfail or session.shouldstop):
            self._groups.appendleft(list(worker.places))
            self._start(session)


def _end_at_once(session: pytest.Session) -> None:
    """End this process with the session's exit status at once, since freeing every object would take seconds."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(session.exitstatus)


class _Worker:
    """A worker process, seen from the process that started it."""

    def __init__(self, pid: int, name: str) -> None:
        self.pid = pid
        self.name = name
        self.places: deque[int] = deque()
        """Places of the tests that the worker has taken and not finished."""
        self.running: int | None = None

    def end(self) -> None:
        """Interrupt the worker as Ctrl-C does, so that its test and the processes of the test end, and wait for it."""
        try:
            os.kill(self.pid, signal.SIGINT)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            return


def _work(session: pytest.Session, connection: Connection, name: str) -> NoReturn:
    """Run groups of tests in a forked worker until none is left."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    code = 0
    try:
        _settle(session.config, name)
        session.config.pluginmanager.register(_Teller(session.config, connection))
        _run(session, connection)
    except (KeyboardInterrupt, BrokenPipeError):
        code = 1
    except BaseException:
        code = 1
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _settle(config: pytest.Config, name: str) -> None:
    """Detach a worker from what workers must not share: terminal, captured output, folder, main module."""
    os.environ[WORKER_VARIABLE] = name
    config.pluginmanager.unregister(name="terminalreporter")
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    if config.option.capture != "no":  # output of threads between tests belongs to no test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno())
    capture.start_global_capturing()
    folders = config._tmp_path_factory  # type: ignore[attr-defined]
    folders._basetemp = folders.mktemp(name, numbered=False)
    sys.modules["__main__"] = types.ModuleType("__main__")  # which processes that these start would import


def _run(session: pytest.Session, connection: Connection) -> None:
    def more() -> Group:
        connection.send(("next", ()))
        group: Group = connection.recv()
        return group

    places = deque(more())
    try:
        while places:
            place = places.popleft()
            places.extend(() if places else more())  # the next test keeps fixtures that both share
            following = session.items[places[0]] if places else None
            connection.send(("start", (place,)))
            before_s = _processor_s()
            session.config.hook.pytest_runtest_protocol(item=session.items[place], nextitem=following)
            connection.send(("finish", (_processor_s() - before_s,)))
            if session.shouldfail or session.shouldstop:
                break
    finally:
        session._setupstate.teardown_exact(None)


def _processor_s() -> float:
    """Return the processor seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class _Teller:
    """A plugin that forwards the calls of a worker's hooks to the process that started the worker."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("report", data))

    @pytest.hookimpl
    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> None:
        text = f"{warning_message.category.__name__}: {warning_message.message}"
        place = (warning_message.filename, warning_message.lineno)
        self._connection.send(("warning", (text, *place, when, nodeid, location)))


def _warning(
    text: str, filename: str, lineno: int, when: str, nodeid: str, location: tuple[str, int, str] | None
) -> dict[str, Any]:
    """Return a message's fields for a warning, whose class cannot be sent."""
    message = warnings.WarningMessage(UserWarning(text), UserWarning, filename, lineno)
    return {"warning_message": message, "when": when, "nodeid": nodeid, "location": location}
