"""The two queues between the thread that talks to gateways and the thread that steps.

Commands go in as the protocol's own structs; events come out. Posting an event wakes the other thread through a socket
pair, so that the talking thread can sleep in one poll. A command that should not wait for a step of batch work asks
that step to pause. Nothing here knows ZeroMQ or tensors.
"""

from __future__ import annotations

import contextlib
import ctypes
import queue
import socket

import msgspec

from engine.protocol import (
    Abort,
    AdapterStatus,
    EngineStats,
    GenerateRequest,
    LoadAdapter,
    Service,
    StepOutputs,
    UnloadAdapter,
)


class Drain(msgspec.Struct, frozen=True):
    """A command to finish running requests, take nothing new, and then end."""


class ServedElsewhere(msgspec.Struct, frozen=True):
    """A command that tells the service which tenants got on other replicas of the pool."""

    services: dict[str, Service]
    """The service of each tenant, by its id."""


class Wake(msgspec.Struct, frozen=True):
    """A command without content, which tells that something outside the mailbox has changed, such as a load's end."""


class Drained(msgspec.Struct, frozen=True):
    """The event that the stepping thread has ended, after which no other event comes."""


Command = GenerateRequest | Abort | LoadAdapter | UnloadAdapter | ServedElsewhere | Drain | Wake
Event = StepOutputs | AdapterStatus | EngineStats | Drained


class PauseFlag:
    """A request to pause a step, made by any thread (`engine.device.Pause`): a flag that native code reads."""

    def __init__(self) -> None:
        self._flag = ctypes.c_int32()

    @property
    def address(self) -> int:
        """The address of the flag, an int32 that is not 0 while the pause is asked for."""
        return ctypes.addressof(self._flag)

    @property
    def is_asked(self) -> bool:
        """True from `ask` until `forget`."""
        return bool(self._flag.value)

    def ask(self) -> None:
        """Ask the step under way, or the next one that can pause, to pause."""
        self._flag.value = 1

    def forget(self) -> None:
        """Withdraw the request to pause."""
        self._flag.value = 0


class Mailbox:
    """The two queues. They have no bound: the server bounds the commands, a step bounds the events."""

    def __init__(self) -> None:
        self.pause = PauseFlag()
        """The flag that is set by each command which should not wait for a step of batch work."""
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)

    @property
    def wake_fd(self) -> int:
        """The file descriptor that is readable when events wait."""
        return self._wake_reader.fileno()

    def command(self, command: Command) -> None:
        """Put a command into the stepping thread's queue."""
        self._inbox.put(command)
        if _is_urgent(command):
            self.pause.ask()

    def take_commands(self, timeout_s: float) -> list[Command]:
        """Return all waiting commands; with none, wait up to timeout_s for the first (0: do not wait)."""
        commands: list[Command] = []
        with contextlib.suppress(queue.Empty):
            commands.append(self._inbox.get(timeout=timeout_s) if timeout_s > 0 else self._inbox.get_nowait())
            while True:
                commands.append(self._inbox.get_nowait())
        return commands

    def post(self, event: Event) -> None:
        """Put an event into the queue of the thread that talks to gateways, and wake that thread."""
        self._outbox.put(event)
        self.wake()

    def wake(self) -> None:
        """Make wake_fd readable. Safe in a signal handler."""
        with contextlib.suppress(BlockingIOError):  # a full pipe already wakes
            self._wake_writer.send(b"\0")

    def take_events(self) -> list[Event]:
        """Return all events that have been posted, without waiting."""
        with contextlib.suppress(BlockingIOError):
            self._wake_reader.recv(4096)
        events: list[Event] = []
        with contextlib.suppress(queue.Empty):
            while True:
                events.append(self._outbox.get_nowait())
        return events

    def close(self) -> None:
        """Close the sockets by which the talking thread is woken."""
        self._wake_reader.close()
        self._wake_writer.close()


def _is_urgent(command: Command) -> bool:
    """Tell whether an interactive request may wait for a command to be obeyed."""
    if isinstance(command, GenerateRequest):
        return command.batch is None
    return not isinstance(command, ServedElsewhere)
