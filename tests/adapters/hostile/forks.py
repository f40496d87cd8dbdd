"""Runs confined work by the thousand, in forks of one process that has imported everything, to share Python's start.

Each fork has its own limits and filter, as a process of `run_confined` has.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from adapters import inspector
from adapters.sandbox.confined import Limits, run_work
from adapters.sandbox.run import MAX_REPLY_BYTES, content_of
from tests.patience import PATIENCE_S

MAX_DESCRIPTORS = 8
_ROOT = Path(__file__).parents[3]


class Order(msgspec.Struct, frozen=True):
    """A task for a fork."""

    argument: bytes
    limits: Limits
    numbers: list[int]
    """The numbers that the task expects for the descriptors that are sent along; the first is stdout."""


class ForkExit(msgspec.Struct, frozen=True):
    """The exit of a fork."""

    status: int
    """The exit code, or the negative number of a signal."""
    cpu_s: float
    """User and system time of the fork."""


class Forks:
    """Runs the inspector's work in forks of this process, with the interface of a `Run` of `adapters.inspector`.

    cpu_s: the processor time of the last work, in seconds.
    """

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(60)
        start = (
            f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from {__name__} import serve; serve({theirs.fileno()})"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", start],
            pass_fds=[theirs.fileno()],
            env={"OPENBLAS_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"},
        )
        theirs.close()
        self.cpu_s = 0.0

    def close(self) -> None:
        self._socket.close()
        self._process.wait(PATIENCE_S)

    async def __call__(self, module: str, argument: bytes, descriptors: Sequence[int], limits: Limits) -> bytes:
        assert module == inspector.__name__
        read_end, write_end = os.pipe()
        order = Order(argument, limits, [1, *descriptors])
        socket.send_fds(self._socket, [msgspec.msgpack.encode(order)], [write_end, *descriptors])
        os.close(write_end)
        with os.fdopen(read_end, "rb") as pipe:
            reply = pipe.read(MAX_REPLY_BYTES + 1)
        ending = msgspec.msgpack.decode(self._socket.recv(4096), type=ForkExit)
        self.cpu_s = ending.cpu_s
        return content_of(reply, ending.status, limits)


def serve(number: int) -> None:
    """Execute each order that the caller sends in a fork of this process, until the caller closes the connection.

    number: the connection's descriptor.
    """
    connection = socket.socket(fileno=number)
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, MAX_DESCRIPTORS)
        if not message:
            return
        child = os.fork()
        if child == 0:
            connection.close()
            _work(msgspec.msgpack.decode(message, type=Order), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        _, status, usage = os.wait4(child, 0)
        ending = ForkExit(os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime)
        connection.send(msgspec.msgpack.encode(ending))


def _work(order: Order, descriptors: Sequence[int]) -> None:
    signal.alarm(int(order.limits.wall_s))
    # By way of numbers that neither has, since the sent ones may be what others of them are to become.
    free = max(*order.numbers, *descriptors) + 1
    for at, descriptor in enumerate(descriptors):
        os.dup2(descriptor, free + at)
        os.close(descriptor)
    for at, number in enumerate(order.numbers):
        os.dup2(free + at, number)
        os.close(free + at)
    try:
        run_work(inspector.work, order.argument, order.limits)
    finally:
        os._exit(0)
