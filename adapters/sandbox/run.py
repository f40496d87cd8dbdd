"""Runs work on strangers' files in a process of its own that can harm nobody, and waits for its answer.

The parent hands over open files and reads one bounded answer; the files themselves it never reads, so it doesn't grow
with them. `confined` limits the process. Knows nothing of adapters.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from adapters.sandbox.confined import Answer, DiskFull, Limits, OutOfMemory, Reply, SandboxFault

MAX_REPLY_BYTES = 1024 * 1024

# This very source tree, whatever is installed beside it; otherwise isolated from the caller's folder and variables.
_ROOT = Path(__file__).parents[2]
_START = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from adapters.sandbox.confined import main; main()"
# The process gets none of the parent's secrets. It has one thread: the filter of system calls is for one, and each
# takes memory.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"}
_INHERITED = ("LD_LIBRARY_PATH",)  # where a Python outside of the system's folders finds its own libraries


class Run(Protocol):
    """A function that runs work on strangers' files, as `run_confined` does."""

    async def __call__(self, module: str, argument: bytes, descriptors: Sequence[int], limits: Limits) -> bytes:
        """Run a module on an argument and descriptors within limits, and return the answer."""


class LimitExceeded(Exception):
    """The error for work that was ended at a limit, or crashed; the message names the limit or the crash."""


class SandboxBroken(RuntimeError):
    """The error when this machine has no sandbox, or is too busy for one, or the work has a bug."""


async def run_confined(module: str, argument: bytes, descriptors: Sequence[int], limits: Limits) -> bytes:
    """Return the result of `work(argument)` of the module, computed in a confined process.

    The process has `descriptors` open under the same numbers, and has ended when this returns, raises or is cancelled.

    Raises LimitExceeded: when the work crashed or was ended at a limit.
    Raises SandboxBroken: when no sandbox is to be had, or the work has a bug.
    Raises OSError: when a file that the work writes has no room.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-c", _START),
        *(module, msgspec.json.encode(limits).decode(), argument.decode()),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        pass_fds=tuple(descriptors),
        env=_ENVIRONMENT | {name: os.environ[name] for name in _INHERITED if name in os.environ},
        cwd="/",
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(limits.wall_s):
            reply = await _read_bounded(process.stdout)
            status = await process.wait()
    except TimeoutError:
        # A timeout is not the work's fault, since the work's processor time is limited: other processes come before
        # this one.
        raise SandboxBroken(f"the confined process had too little processor time within {limits.wall_s:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return content_of(reply, status, limits)


async def _read_bounded(stream: asyncio.StreamReader) -> bytes:
    reply = bytearray()
    while chunk := await stream.read(64 * 1024):
        reply += chunk
        if len(reply) > MAX_REPLY_BYTES:
            raise LimitExceeded(f"its answer has more than {MAX_REPLY_BYTES} bytes")
    return bytes(reply)


def content_of(reply: bytes, status: int, limits: Limits) -> bytes:
    """Return the work's result, from what the process wrote and its exit status (negative: the signal that ended it).

    Raises as `run_confined`.
    """
    if status == -signal.SIGXCPU:
        raise LimitExceeded(f"it took more than {limits.cpu_s} s of processor time")
    if status == -signal.SIGKILL:  # by a machine without memory, or by a person: our limits send other signals
        raise SandboxBroken("the confined process was killed from outside")
    if status < 0:
        raise LimitExceeded(f"it was ended by {signal.Signals(-status).name}")
    try:
        outcome: Reply = msgspec.msgpack.decode(reply, type=Reply)
    except msgspec.DecodeError:
        raise SandboxBroken(f"the confined process ended with status {status} and no answer") from None
    match outcome:
        case Answer(content):
            return content
        case OutOfMemory():
            raise LimitExceeded(f"it takes more than {limits.memory_bytes >> 20} MiB of memory")
        case DiskFull(number):
            raise OSError(number, os.strerror(number))
        case SandboxFault(error):
            raise SandboxBroken(error)
