"""The interface of an agent to whatever runs engines. Knows neither rows nor models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec


class Spec(msgspec.Struct, frozen=True):
    """The facts by which a replica's engine is started."""

    generation: int
    """The number of the start."""
    address: str
    """The ZeroMQ endpoint that the engine listens on, or the URL of the socket of a server of another maker."""
    command: Sequence[str]
    """The program and its arguments."""
    environ: Mapping[str, str]
    """The whole environment of the process."""
    public_key: str | None = None
    """The key that the engine proves where its address is on TCP."""


class Engine(msgspec.Struct, frozen=True):
    """An engine that lives, as its launcher knows it."""

    replica_id: str
    generation: int
    """The number of the start."""
    address: str
    """The endpoint or the URL of a socket, as in `Spec`."""
    pid: int | None
    """The number of the process; None while an agent is about to start it."""


class Ended(msgspec.Struct, frozen=True):
    """The end of an engine."""

    replica_id: str
    generation: int
    """The number of the start that ended."""
    returncode: int | None
    """The exit code of the process, negative for a signal; None where this agent did not start the process."""
    last_lines: str
    """The last lines of the engine's output."""


class Launcher(Protocol):
    """Starts and stops the engines of one host. At most one engine of a replica lives, whoever starts it."""

    async def start(self, replica_id: str, begin: Callable[[], Awaitable[Spec | None]]) -> Engine | None:
        """Start an engine of a replica; return None where one lives already, or `begin` returns None.

        begin: decides, once no other engine of the replica can be started, whether and how this one is.
        Raises OSError: when its process cannot be made.
        """

    async def stop(self, engine: Engine, grace_s: float) -> None:
        """End an engine: ask it to, and kill it after grace_s. Does nothing where it does not live any more."""

    def running(self) -> dict[str, Engine]:
        """Return the engines that live, by replica, whoever started them."""

    def watch(self, ended: Callable[[Ended], None]) -> None:
        """Call this function for each engine that ends from now on, of those that `start` or `running` returned."""

    def forget(self, replica_ids: set[str]) -> None:
        """Remove what is kept of all replicas but these, as far as none of their engines lives."""

    def close(self) -> None:
        """Watch no more; the engines live on."""
