"""The driver's process, which the agent starts and starts again, and the calls to it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec

from gateway.agent.commands import engine_environ
from gateway.agent.launcher import CannotReach
from gateway.agent.ray.messages import Answer, Call, Connected, NumberedAnswer, NumberedCall, Setup, Unreachable
from gateway.support.process import die_with_parent, open_log

CONNECT_S = 30.0
"""Seconds that the driver has to connect to the cluster."""
MAX_LINE_BYTES = 16 << 20


class Bridge:
    """Calls to one driver at a time.

    log_path: the file for all that the driver and Ray's library write; None: no file.
    """

    def __init__(self, setup: Setup, log_path: Path | None) -> None:
        self.num_nodes = 0
        """The nodes of the cluster when the driver connected last."""
        self._setup = setup
        self._log_path = log_path
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._why = "it is not connected to the Ray cluster yet"

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a driver, and do `work` while the driver is connected to the cluster; return when the work is done.

        Raises CannotReach: when the driver cannot connect, or loses the connection.
        """
        with nullcontext(asyncio.subprocess.DEVNULL) if self._log_path is None else open_log(self._log_path) as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "gateway.agent.ray.driver",
                msgspec.json.encode(self._setup).decode(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=engine_environ(os.environ),
                limit=MAX_LINE_BYTES,
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGKILL),
            )
        connected: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting = {0: connected}
        reading = asyncio.create_task(self._read(process))
        working: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(CONNECT_S):
                answer = await connected
            if not isinstance(answer, Connected):
                raise CannotReach(answer.why if isinstance(answer, Unreachable) else "its driver said nothing")
            self.num_nodes = answer.num_nodes
            self._process = process
            working = asyncio.create_task(work())
            await asyncio.wait({working, reading}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise CannotReach("the connection to the Ray cluster was lost")
        except TimeoutError:
            self._why = f"the Ray cluster ({self._setup.address}) cannot be reached: no answer in {CONNECT_S:g} s"
            raise CannotReach(self._why) from None
        except CannotReach as error:
            self._why = str(error)
            raise
        finally:
            self._process = None
            for task in filter(None, (working, reading)):
                task.cancel()
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await asyncio.gather(*filter(None, (working, reading)), return_exceptions=True)
            self._fail_all()

    async def call(self, call: Call, seconds: float) -> Answer:
        """Send a command to the driver, and return the answer.

        Raises CannotReach: when no answer comes within `seconds`, or the driver cannot reach the cluster.
        """
        process = self._process
        if process is None or process.stdin is None:
            raise CannotReach(self._why)
        number = next(self._numbers)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            process.stdin.write(msgspec.json.encode(NumberedCall(number, call)) + b"\n")
            async with asyncio.timeout(seconds):
                found = await answer
        except (TimeoutError, OSError):
            raise CannotReach(f"the Ray cluster did not answer within {seconds:g} s") from None
        finally:
            self._waiting.pop(number, None)
        if isinstance(found, Unreachable):
            raise CannotReach(found.why)
        return found

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        decoder = msgspec.json.Decoder(NumberedAnswer)
        async for line in process.stdout:
            said = decoder.decode(line)
            waiting = self._waiting.get(said.number)
            if waiting is not None and not waiting.done():
                waiting.set_result(said.answer)
        self._fail_all()

    def _fail_all(self) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(Unreachable("the connection to the Ray cluster was lost"))
