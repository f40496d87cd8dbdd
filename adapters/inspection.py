"""Inspection of strangers' files: the check that they are an adapter which this base model can serve.

`inspect` is the one way in. The files are unpacked, read and judged by `adapters.inspector` in a confined process
(`adapters.sandbox`); here they are only opened. Knows nothing of tenants, versions or the files' origin.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import msgspec

from adapters.archive.members import MAX_MEMBERS, Members
from adapters.archive.tar import OVERHEAD_BYTES
from adapters.errors import AdapterRejected
from adapters.peft_format import FILE_NAMES
from adapters.report import BaseShape, Bounds, Job, ModuleReport, Rejection, Report, Verdict
from adapters.sandbox.confined import Limits
from adapters.sandbox.run import LimitExceeded, Run, run_confined

__all__ = ["BaseShape", "Bounds", "ModuleReport", "Report", "inspect"]

MEMORY_BYTES = 256 * 1024 * 1024
# Processor time for the smallest adapter, and the bytes that a second more is enough for: several passes over them.
BASE_CPU_S = 5
BYTES_PER_CPU_S = 16 * 1024 * 1024
# Seconds beside the processor time for the start, for the disk and for other processes: this one is nice.
EXTRA_WALL_S = 30.0

NICENESS, NICENESS_OF_SUSPECTS = 5, 19
"""The niceness of an inspection (sched(7)). Token streams on this machine come first, but an uploader waits for the
inspection, so it gets a quarter of a busy processor. The inspections of a project whose last adapters were refused run
on idle time alone."""


async def inspect(
    path: Path, into: Path, base: BaseShape, bounds: Bounds, run: Run = run_confined, *, niceness: int = NICENESS
) -> Report:
    """Judge a folder with PEFT's two files, or an archive of them (tar, tar.gz or zip, told by content).

    into: an empty folder that nobody else writes to; after the call the folder holds exactly the two files, copied
    before they were judged. They are not synced. After any error the folder is as it was.
    run: starts the confined process.
    niceness: the niceness of the confined process.

    Raises AdapterRejected: when the adapter is refused.
    Raises SandboxBroken: when no inspection is possible.
    Raises OSError: when `into` cannot be written.
    """
    with ExitStack() as files, ExitStack() as undo:
        job = _open_all(path, into, base, bounds, files, undo)
        verdict = await _judge_in_sandbox(job, bounds, niceness, run)
        if isinstance(verdict, Rejection):
            raise AdapterRejected(verdict.reasons)
        undo.pop_all()
    return verdict.report


async def _judge_in_sandbox(job: Job, bounds: Bounds, niceness: int, run: Run) -> Verdict:
    cpu_s = BASE_CPU_S + bounds.max_bytes // BYTES_PER_CPU_S
    limits = Limits(cpu_s, cpu_s + EXTRA_WALL_S, MEMORY_BYTES, bounds.max_bytes, niceness)
    try:
        answer = await run("adapters.inspector", msgspec.json.encode(job), (*job.sources, *job.targets), limits)
    except LimitExceeded as error:
        raise AdapterRejected([f"the inspection was broken off: {error}"]) from None
    verdict: Verdict = msgspec.msgpack.decode(answer, type=Verdict)
    return verdict


def _open_all(path: Path, into: Path, base: BaseShape, bounds: Bounds, files: ExitStack, undo: ExitStack) -> Job:
    """Open the files that the inspector reads and writes; `files` closes them, and `undo` removes the new ones.

    Raises AdapterRejected: when a source is missing, is not a regular file or is too large.
    """
    ignored: list[str] = []
    if path.is_dir():
        sources, ignored = _open_folder(path, files)
    else:
        sources = [_open_source(path, path.name, files)]
        num_bytes = os.fstat(sources[0]).st_size
        if num_bytes > bounds.max_bytes + OVERHEAD_BYTES:
            raise AdapterRejected([f"the archive has {num_bytes} bytes; {bounds.max_bytes} are allowed"])
    targets = []
    for target in (into / name for name in FILE_NAMES):
        targets.append(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode=0o600))
        files.callback(os.close, targets[-1])
        undo.callback(target.unlink, missing_ok=True)
    return Job(sources, targets, ignored, base, bounds)


def _open_folder(path: Path, files: ExitStack) -> tuple[list[int], list[str]]:
    """Open the two files of a folder; return their descriptors, and the names of other files, as `Members.ignored`.

    One descriptor of the folder serves for both, so that both files are of the same one. Other files in it are never
    opened.
    """
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    files.callback(os.close, folder)
    members = Members()
    for name in _names(folder):
        members.add_file(name)
    members.check_complete()
    return [_open_source(name, name, files, folder) for name in FILE_NAMES], members.ignored


def _names(folder: int) -> Iterator[str]:
    with os.scandir(folder) as entries:
        yield from (entry.name for entry in islice(entries, MAX_MEMBERS + 1) if not entry.is_dir(follow_symlinks=False))


def _open_source(path: Path | str, name: str, files: ExitStack, folder: int | None = None) -> int:
    """Open a regular file for reading; return its descriptor. A link, which could lead anywhere, is refused.

    name: the name of the file in errors. folder: the descriptor of the folder that `path` is relative to; None: `path`
    stands by itself.

    Raises AdapterRejected: when the file is missing, unreadable, a link or not a regular file.
    """
    try:
        # Without O_NONBLOCK the open itself would wait for a pipe's other end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        raise AdapterRejected([f"{name} is missing"]) from None
    except OSError as error:
        reason = "is a symbolic link" if error.errno == errno.ELOOP else f"cannot be read: {error.strerror}"
        raise AdapterRejected([f"{name} {reason}"]) from None
    files.callback(os.close, descriptor)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise AdapterRejected([f"{name} is not a regular file"])
    return descriptor
