"""The process in which strangers' files are read: `run` starts it, and the kernel holds it to its limits.

It imports what it needs, gives up everything but the files that its parent handed it (no more files, no sockets, no
processes, bounded memory and processor time), and only then begins to work. Knows nothing of adapters.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from adapters.sandbox import seccomp

_PR_SET_PDEATHSIG = 1


class Limits(msgspec.Struct, frozen=True):
    """The limits of confined work."""

    cpu_s: int
    """Processor time in whole seconds."""
    wall_s: float
    """Seconds for all of the work, which the parent enforces."""
    memory_bytes: int
    """Bytes beyond those that Python takes before the work begins."""
    file_bytes: int
    """The largest size to which the work may write a file."""
    niceness: int = 0
    """0 to 19, of the whole process (sched(7))."""


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The result of the work, when it succeeded."""

    content: bytes


class OutOfMemory(msgspec.Struct, frozen=True, tag=True):
    """The reply when the work needed more memory than its limit."""


class DiskFull(msgspec.Struct, frozen=True, tag=True):
    """The reply when a file that the work writes has no room."""

    number: int
    """The number of the error, as in `errno`."""


class SandboxFault(msgspec.Struct, frozen=True, tag=True):
    """The reply to a fault of this program or machine, not of the file: there is no sandbox, or the work has a bug."""

    error: str


Reply = Answer | OutOfMemory | DiskFull | SandboxFault


def main() -> None:
    """Do confined work.

    Arguments: a module with a function `work(argument: bytes) -> bytes`, the limits, and the argument.
    """
    module, encoded, argument = sys.argv[1:]
    limits = msgspec.json.decode(encoded, type=Limits)
    lower_priority(limits.niceness)
    work = importlib.import_module(module).work
    run_work(work, argument.encode(), limits)


def lower_priority(niceness: int) -> None:
    """Lower the priority of this process, and give it a session of its own, so that other work comes first.

    If Linux groups processes by session, each group gets an equal share of the processors and niceness counts within
    the group alone: in the gateway's session this process would come before the engine's (sched(7)).
    """
    os.nice(niceness)
    os.setsid()
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(niceness))


def run_work(work: Callable[[bytes], bytes], argument: bytes, limits: Limits) -> None:
    """Confine this process, do the work and write the Reply to stdout."""
    reply: Reply
    try:
        confine(limits)
        reply = Answer(work(argument))
    except MemoryError:
        reply = OutOfMemory()
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            reply = DiskFull(error.errno)
        else:
            reply = SandboxFault(_describe(error))
    with os.fdopen(1, "wb") as stdout:
        stdout.write(msgspec.msgpack.encode(reply))


def confine(limits: Limits) -> None:
    """Confine this process from here on, which cannot be undone.

    Raises OSError: when the kernel has no way to do so.
    """
    # This process ends with its parent, even by kill -9, so that nothing goes on writing.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    os.dup2(0, 2)  # all that matters is in the answer, and stderr is the parent's log
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory_bytes = pages * resource.getpagesize() + limits.memory_bytes
    # SIGXCPU tells the parent why; the hard limit kills a process that ignores it.
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + 1))
    for kind, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))
    seccomp.install()


def _describe(error: Exception) -> str:
    """Return the error and where it happened, without the line of source, whose file could not be opened any more."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace is not None else ""
    return f"{type(error).__name__}: {str(error)[:500]!r}{where}"
