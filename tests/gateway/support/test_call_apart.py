"""Work in a process of its own answers as it would here, and ends with whoever waits for it."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from gateway.domain.errors import InvalidRequest
from gateway.support.process import MAX_CALLS, NICENESS, call_apart
from tests.installation.waiting import until


def described(text: str, *, times: int) -> tuple[str, int, int, list[str]]:
    print("no part of the answer")
    return text * times, os.getpid(), os.nice(0), [name for name in os.environ if "SECRET" in name]


def refuse() -> None:
    raise InvalidRequest("Too many.", param="runs")


def die() -> None:
    sys.stdout.flush()
    os._exit(3)


def wait() -> tuple[float, float]:
    begun = time.monotonic()
    time.sleep(0.2)
    return begun, time.monotonic()


def sleep_for_ever(folder: Path) -> None:
    (folder / "pid").write_text(str(os.getpid()))
    while True:
        time.sleep(60)


async def test_a_call_has_its_arguments_a_low_priority_and_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s")
    text, pid, niceness, secrets = await call_apart(described, "é", times=3)
    assert (text, niceness, secrets) == ("ééé", max(NICENESS, os.nice(0)), [])
    assert pid != os.getpid()


async def test_a_call_raises_what_the_function_raises() -> None:
    with pytest.raises(InvalidRequest, match=r"Too many\.") as refused:
        await call_apart(refuse)
    assert refused.value.param == "runs"


async def test_a_process_that_dies_is_an_error_and_no_answer() -> None:
    with pytest.raises(RuntimeError, match="die ended with status 3"):
        await call_apart(die)


async def test_no_more_than_two_calls_run_at_once() -> None:
    times = await asyncio.gather(*(call_apart(wait) for _ in range(5)))
    at_once = [sum(begun <= moment < ended for begun, ended in times) for moment, _ in times]
    assert max(at_once) <= MAX_CALLS


async def test_a_process_ends_with_the_one_who_waits_for_it(tmp_path: Path) -> None:
    waiting = asyncio.create_task(call_apart(sleep_for_ever, tmp_path))

    async def pid_of_call() -> int | None:
        text = (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""
        return int(text) if text else None

    pid = await until(pid_of_call)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
