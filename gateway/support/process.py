"""Child processes and their files, and modules of ours that run as one. Linux only.

Knows nothing about which programs run.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import pickle
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, ParamSpec, TypeVar, cast

PR_SET_PDEATHSIG = 1
MAX_LOG_BYTES = 32 << 20
MAX_LINE_BYTES = 1 << 16

NICENESS = 10
"""The niceness of processes that make calls: requests come first, and a call still ends on a busy machine."""

MAX_CALLS = 2
"""The most calls that run at once; others wait."""
_PLACES = asyncio.Semaphore(MAX_CALLS)

P = ParamSpec("P")
T = TypeVar("T")


def die_with_parent(signum: signal.Signals) -> Callable[[], None]:
    """Return a `preexec_fn` after which the kernel sends signum to the child when the thread that started it ends.

    The `preexec_fn` has to run after a change of user, which clears the setting; `subprocess` does so.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def arrange() -> None:
        libc.prctl(PR_SET_PDEATHSIG, int(signum))
        if os.getppid() != parent:  # the parent ended before the call
            os.kill(os.getpid(), signal.SIGKILL)

    return arrange


async def start_module(name: str, *arguments: str, max_line_bytes: int = MAX_LINE_BYTES) -> asyncio.subprocess.Process:
    """Start a module as a process, with pipes for its input and output, and with none of this process's secrets.

    name: the module's whole name. max_line_bytes: the longest line that `readline` reads of the process's output.

    Raises OSError: when no process can be started.
    """
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # the folder of this process is not for modules
        "-m",
        name,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=max_line_bytes,
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


async def end_module(process: asyncio.subprocess.Process) -> None:
    """Kill a process of `start_module`, if it has not ended yet, and wait for its end."""
    if process.returncode is None:
        process.kill()
    await process.wait()


async def call_apart(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a process of its own, and return its result. Cancelling ends the process.

    For work in Python that would keep the event loop waiting. A thread is no help there: it holds the interpreter's
    lock in turns with the event loop, which waits up to 5 ms for it after each system call (`sys.getswitchinterval`).

    function: a function of a module's top level. Its arguments and its result are pickled.

    Raises RuntimeError: when the process does not start, or dies; else whatever the function raises.
    """
    call = pickle.dumps((function, args, kwargs))
    async with _PLACES:
        answer = await _answer_of_process(call, function.__qualname__)
    result, raised = pickle.loads(answer)  # noqa: S301 - of a process that this one started
    if raised is not None:
        raise raised
    return cast("T", result)


async def _answer_of_process(call: bytes, name: str) -> bytes:
    try:
        process = await start_module(__spec__.name)
    except OSError as error:
        raise RuntimeError(f"no process can be started: {error}") from error
    try:
        answer, _ = await process.communicate(call)
    finally:
        await end_module(process)
    if process.returncode != 0:
        raise RuntimeError(f"the process of {name} ended with status {process.returncode}")
    return answer


def _answer_call() -> None:
    """Make the call that comes through the input, and write its result, or its error, to the output."""
    os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the function may print is no part of the answer
    function, args, kwargs = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the process that started this one
    result, raised = None, None
    try:
        result = function(*args, **kwargs)
    except Exception as error:
        raised = error
    with output:
        pickle.dump((result, raised), output)


def open_log(path: Path) -> BinaryIO:
    """Open a log for appending, readable by its owner alone; one past MAX_LOG_BYTES is first renamed to `<name>.1`."""
    make_private_folder(path.parent)
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(path.with_name(f"{path.name}.1"))
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o600), "ab", buffering=0)


def bound_logs(folder: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
    """Move the lines of every log past max_bytes to `<name>.1`, while processes go on appending to the log.

    Lines that they write in between are lost: a bound matters more than a line.

    max_bytes: the size from which on a log is moved.
    """
    for path in folder.glob("*.log"):
        with contextlib.suppress(OSError):  # somebody removed it, or the disk is full
            if path.stat().st_size > max_bytes:
                try:
                    shutil.copy(path, path.with_name(f"{path.name}.1"))
                finally:
                    os.truncate(path, 0)


def last_lines(path: Path, count: int, since_byte: int = 0) -> str:
    """Return the last lines of what was written to a log after since_byte; "" when there is nothing.

    count: the number of lines.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            start = since_byte if since_byte <= size else 0  # begun anew since
            file.seek(max(start, size - 64 * 1024))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return "\n".join(lines[-count:])


def keep_private() -> None:
    """Set the umask so that files of this process and its children are accessible to their user alone."""
    os.umask(0o077)


def make_private_folder(path: Path) -> Path:
    """Make a folder and those above it, where they do not exist, accessible to their user alone."""
    for folder in reversed([each for each in (path, *path.parents) if not each.exists()]):
        folder.mkdir(mode=0o700, exist_ok=True)
    return path


def make_data_folder(path: Path) -> None:
    """Make a folder and those above it, where they do not exist, accessible to their user alone.

    Folders that root makes can be passed through by others: the database, which has a user of its own, lives below.

    Raises OSError: when a folder cannot be made.
    """
    mode = 0o711 if os.geteuid() == 0 else 0o700
    for folder in reversed([each for each in (path, *path.parents) if not each.exists()]):
        folder.mkdir(exist_ok=True)
        folder.chmod(mode)
    path.mkdir(exist_ok=True)


def close_to_others(folder: Path) -> None:
    """Remove the rights of other users from the files in a folder that belong to this process's user."""
    for path in folder.iterdir():
        found = path.lstat()
        if found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode) and found.st_mode & 0o077:
            path.chmod(found.st_mode & 0o700)


def private_folder(path: Path, uid: int, gid: int) -> Path:
    """Make a folder that only uid can enter, or check that an existing one is of this kind.

    uid, gid: the ids of its user and of its group.

    Raises PermissionError: when somebody else made the folder: in a shared place like /tmp that would be a trap.
    """
    try:
        path.mkdir(mode=0o700)
        if uid != os.geteuid():
            os.chown(path, uid, gid)
    except FileExistsError:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError(f"{path} exists and is not a private folder (mode 0700) of user {uid}") from None
    return path


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Add a file's name to errors raised within the context, such as those of a full disk, which lack it."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def write_private(path: Path, text: str) -> None:
    """Replace a file as a whole with text, readable by its owner alone; it is on disk when this returns."""
    _write_temporary(path, text).replace(path)
    _sync_folder(path.parent)


def make_private(path: Path, text: str) -> str:
    """Make a file with text, as `write_private` does, unless there is one.

    Returns the text in the file: if several processes make it at once, one does, and all return the same text.
    """
    if not path.exists():
        make_private_folder(path.parent)
        temporary = _write_temporary(path, text)
        try:
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(temporary)
            _sync_folder(path.parent)
        finally:
            temporary.unlink()
    return path.read_text()


def _write_temporary(path: Path, text: str) -> Path:
    """Write text to a temporary file beside path, on disk, readable by its owner alone, and return the file.

    The file's name is random, since processes of several containers that share the folder may have the same pid.
    """
    opened, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with naming_file(path), os.fdopen(opened, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink()
        raise
    return temporary


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


if __name__ == "__main__":
    _answer_call()
