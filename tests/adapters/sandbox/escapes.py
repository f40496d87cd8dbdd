"""Attempts that taken-over code could make in the confined process. They are run in that process: `work` gets the name
of an attempt."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

PARENT = os.getppid()  # asked for before that is refused
LIBC = ctypes.CDLL(None, use_errno=True)
X32_BIT = 0x40000000
IO_URING_SETUP, PIDFD_OPEN, CLONE3 = 425, 434, 435  # the same on all machines

STANDING = f"{os.nice(0)} {os.getsid(0) == os.getpid()}"
"""The niceness and the session of the process before the sandbox is set up."""


def syscall(number: int, *arguments: int) -> int:
    result = int(LIBC.syscall(number, *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def attempts(outside: Path) -> dict[str, Callable[[], Any]]:
    """Return the attempts to get out of the sandbox, by name.

    outside: a folder with a file `there`, which nothing may touch.
    """
    there, new = outside / "there", outside / "new"
    return {
        "tcp socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
        "udp socket": lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM),
        "unix socket": lambda: socket.socket(socket.AF_UNIX),
        "socket pair": socket.socketpair,
        "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
        "write a new file": lambda: new.write_text("here"),
        "write an existing file": lambda: there.write_text("changed"),
        "read a file": there.read_bytes,
        "read the parent's environment": lambda: Path(f"/proc/{PARENT}/environ").read_bytes(),
        "list a folder": lambda: list(outside.iterdir()),
        "make a folder": new.mkdir,
        "remove a file": there.unlink,
        "rename a file": lambda: there.rename(new),
        "link a file": lambda: os.link(there, new),
        "make a symbolic link": lambda: new.symlink_to(there),
        "make a pipe": lambda: os.mkfifo(new),
        "open mode": lambda: there.chmod(0o777),
        "truncate by name": lambda: os.truncate(there, 0),
        "change folder": lambda: os.chdir(outside),
        "change root": lambda: os.chroot(outside),
        "anonymous pipe": os.pipe,
        "memory file": lambda: os.memfd_create("x"),
        "another descriptor": lambda: os.dup(1),
        "another descriptor by fcntl": lambda: fcntl.fcntl(1, fcntl.F_DUPFD, 10),
        "fork": os.fork,
        "start a thread": lambda: threading.Thread(target=print).start(),
        "become another program": lambda: os.execv("/bin/true", ["true"]),
        "signal the parent": lambda: os.kill(PARENT, 0),
        "raise limits": lambda: resource.setrlimit(resource.RLIMIT_CPU, (10_000, 10_000)),
        "raise limits by prlimit": lambda: resource.prlimit(0, resource.RLIMIT_AS, (-1, -1)),
        "raise priority": lambda: os.setpriority(os.PRIO_PROCESS, 0, -5),
        "set an alarm": lambda: signal.setitimer(signal.ITIMER_REAL, 100),
        "change user": lambda: os.setuid(os.getuid()),
        "another namespace": lambda: LIBC.unshare(0x10000000) and syscall(PIDFD_OPEN, 1, 0),
        "io_uring": lambda: syscall(IO_URING_SETUP, 1, 0),
        "clone3": lambda: syscall(CLONE3, 0, 0),
        "x32's write": lambda: syscall(X32_BIT | 1, 1, 0, 0),
    }


def try_all(outside: str) -> dict[str, str]:
    """Make each attempt; return by its name the name of the error, or "done"."""
    results = {}
    for name, attempt in attempts(Path(outside)).items():
        try:
            attempt()
            results[name] = "done"
        except (OSError, RuntimeError, ValueError) as error:
            results[name] = type(error).__name__
    return results


def spin() -> None:
    while True:
        pass


def hang(ready: int) -> None:
    """Write a byte to the pipe `ready`, then block forever."""
    os.write(ready, b"!")
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def hoard() -> None:
    hoarded: list[Any] = []
    while True:
        hoarded.append([hoarded] * 1000)


def work(argument: bytes) -> bytes:
    name, _, rest = argument.decode().partition(" ")
    if name == "escape":
        return msgspec.json.encode(try_all(rest))
    if name == "environment":
        return msgspec.json.encode(dict(os.environ))
    if name == "answer":
        return bytes(int(rest))
    if name == "write":
        descriptor, num_bytes = map(int, rest.split())
        return str(os.write(descriptor, bytes(num_bytes))).encode()
    if name == "niceness":
        return STANDING.encode()
    if name == "hang":
        hang(int(rest))
    if name == "crash":
        ctypes.string_at(0)
    if name == "talk":
        os.write(2, b"forged")
        return b""
    {"spin": spin, "hoard": hoard, "fail": lambda: 1 // 0, "leave": lambda: os._exit(3)}[name]()
    return b""
