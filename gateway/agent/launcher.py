"""The interface of an agent to whatever runs engines. Knows neither rows nor models."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from gateway.domain.pools.capacity import Node


class CannotReach(Exception):
    """The error for a machine or cluster that runs engines and does not answer; the message says why.

    Its engines may live on: nothing is known of them until it answers again.
    """


class CannotStart(Exception):
    """The error for an engine that its machine cannot start; the message says why."""


class NoMachineYet(Exception):
    """The error for an engine that no machine can take yet, so that its start has to be tried again later.

    The message says what the engine waits for.
    """

    def __init__(self, why: str, *, is_full: bool = False) -> None:
        super().__init__(why)
        self.is_full = is_full
        """True if there are machines that would do, and have no room now."""


class LaunchRequest(msgspec.Struct, frozen=True):
    """The needs of one start of a replica's engine: its model, device, memory and labels."""

    replica_id: str
    generation: int
    """The number of this start among the starts of the replica; a later start has a higher one."""
    model_dir: str
    """The folder of the base model."""
    base_digest: str
    """The digest of the model that the folder must hold."""
    device: str = "auto"
    """The device, in the words of the engine's setting `device`."""
    num_cpus: int = 1
    """The number of processors for the engine."""
    memory_bytes: int = 0
    """Memory of the machine that an engine on processors takes, by the estimate."""
    labels: Mapping[str, str] = {}
    """Labels that the machine must have."""
    excluded: Mapping[str, Sequence[str]] = {}
    """Values that labels of the machine must not have, by the labels' names."""


class LaunchPlace(msgspec.Struct, frozen=True):
    """The place where an engine is about to start.

    The launcher has chosen the place, and keeps it free until the start.
    """

    address: str
    """The ZeroMQ endpoint at which gateways reach the engine."""
    endpoint: str
    """The endpoint on which the engine listens."""
    link_dir: str = ""
    """The folder with the keys of the engine's machine, if the address is on TCP."""
    public_key: str | None = None
    """The public key that the engine proves at its address."""
    device: str | None = None
    """The device that was reserved for the engine; None: as the settings and the replica's row say."""
    num_threads: int | None = None
    """Threads for an engine on processors; None: as the settings say, or its share of this host."""
    cache_dir: str | None = None
    """The folder of the copies of adapters on the engine's machine; None: the same as on this host."""


class LaunchSpec(msgspec.Struct, frozen=True):
    """The facts by which a replica's engine is started."""

    generation: int
    """The number of this start among the starts of the replica; a later start has a higher one."""
    address: str
    """The ZeroMQ endpoint that the engine listens on, or the URL of the socket of a server of another maker."""
    command: Sequence[str]
    """The program and its arguments."""
    environ: Mapping[str, str]
    """The whole environment of the process; where it starts on another machine, that machine's counts instead."""
    public_key: str | None = None
    """The key that the engine proves where its address is on TCP."""


class Engine(msgspec.Struct, frozen=True):
    """An engine that lives, as its launcher knows it."""

    replica_id: str
    generation: int
    """The number of this start among the starts of the replica; a later start has a higher one."""
    address: str
    """The endpoint or the URL of a socket, as in `LaunchSpec`."""
    pid: int | None
    """The number of the process; None while an agent is about to start it."""


class EngineEnd(msgspec.Struct, frozen=True):
    """The end of an engine."""

    replica_id: str
    generation: int
    """The number of the start that ended."""
    returncode: int | None
    """The exit code of the process, negative for a signal; None where this agent did not start the process."""
    last_lines: str
    """The last lines of the engine's output."""


Begin = Callable[[LaunchPlace], Awaitable[LaunchSpec | None]]
"""A function that decides whether and how an engine starts at a place. It returns None if the engine is not to start.

A launcher calls the function once no other engine of the replica can be started.
"""


class Launcher(Protocol):
    """Starts and stops engines. At most one engine of a replica is started on a machine, whoever starts it."""

    @property
    def unseen_s(self) -> float:
        """Seconds for which an engine must be silent, and missing in the result of `running`, to count as ended.

        0: `running` returns all that live. Infinite: nothing can be said now.
        """

    async def admit(self, public_keys: Sequence[str]) -> None:
        """Allow the holders of these keys, and nobody else, to connect to engines on TCP."""

    async def start(self, ask: LaunchRequest, begin: Begin) -> Engine | None:
        """Start an engine of a replica and return it; None if the replica has an engine, or `begin` returns None.

        begin: called with the place that was chosen for the engine; returns how the engine is started there.

        Raises CannotStart: when the engine cannot start on this host.
        Raises NoMachineYet: when there is no machine for the engine yet.
        Raises CannotReach: when the machine that would run the engine does not answer.
        Raises the error of `begin`: when `begin` fails.
        """

    async def stop(self, engine: Engine, grace_s: float) -> None:
        """End an engine that may still live: ask the process to end, and kill it after grace_s seconds.

        Raises CannotReach: when the machine that runs the engine does not answer.
        """

    def running(self) -> dict[str, Engine]:
        """Return the engines that are known to live, by replica, whoever started them.

        Two machines may have engines of one replica: the earlier start is returned.
        """

    def nodes(self) -> list[Node] | None:
        """Return the machines among which this launcher chooses.

        Return an empty list if the launcher has its own host alone; None if it cannot see the machines.
        """

    def watch(self, ended: Callable[[EngineEnd], None]) -> None:
        """Call `ended` for each engine that ends from now on, of those that `start` or `running` returned.

        ended: takes the way in which the engine ended.
        """

    def release(self, replica_ids: set[str], held_s: float = math.inf) -> None:
        """Free the resources that are reserved for replicas without a live engine, except for the given replicas.

        replica_ids: the replicas whose resources stay reserved. held_s: seconds for which the caller still has the
        host: nothing is freed after that.
        """

    def forget(self, replica_ids: set[str]) -> None:
        """Remove the files of replicas without a live engine, except for the given replicas.

        replica_ids: the replicas whose files stay.
        """

    async def close(self, *, is_superseded: bool = False) -> None:
        """Stop watching; the engines live on.

        is_superseded: change nothing any more, since another agent has the host.
        """
