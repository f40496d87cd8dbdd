"""The messages between the agent and the driver, one line of JSON each."""

from __future__ import annotations

import msgspec

from gateway.agent.launcher import Engine, EngineEnd, LaunchPlace, LaunchRequest, LaunchSpec
from gateway.domain.pools.capacity import Node


class Setup(msgspec.Struct, frozen=True):
    """The settings that the driver gets at its start, and each supervisor when it is made."""

    address: str
    """The address of the Ray cluster."""
    namespace: str
    """Ray's namespace of the actors of one host."""
    data_dir: str
    """The data folder on nodes whose own environment names none."""
    first_port: int
    """The first port on which engines may listen."""
    last_port: int
    """The last port on which engines may listen."""
    version: str
    """The version of Lorikeet, which has to be the same on all nodes."""


class Look(msgspec.Struct, frozen=True, tag=True):
    """The command to report all engines and nodes."""

    public_keys: list[str]
    """The public keys whose holders may connect to engines from now on."""
    kept: list[str] | None
    """The replicas whose resources stay reserved even without an engine; None: those of all replicas."""


class Offer(msgspec.Struct, frozen=True, tag=True):
    """The command to reserve a place for an engine on a node and return it. `Go` has to follow within moments."""

    ask: LaunchRequest
    """The engine's needs."""
    public_keys: list[str]
    """The public keys whose holders may connect to the engine."""


class Go(msgspec.Struct, frozen=True, tag=True):
    """The command to start the engine for which `Offer` has reserved a place, or to give the place up."""

    replica_id: str
    spec: LaunchSpec | None
    """The engine to start; None gives the place up."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """The command to end an engine."""

    engine: Engine
    grace_s: float
    """Seconds that running requests have to end."""


class Forget(msgspec.Struct, frozen=True, tag=True):
    """The command to remove the files of all replicas but those in `replica_ids`."""

    replica_ids: list[str]


Call = Look | Offer | Go | Stop | Forget


class Connected(msgspec.Struct, frozen=True, tag=True):
    """The reply that the driver is connected to the cluster."""

    num_nodes: int


class ClusterState(msgspec.Struct, frozen=True, tag=True):
    """The reply with the present engines and nodes of the cluster."""

    engines: list[Engine]
    """Engines that live on nodes, the earlier start of a replica first."""
    ended: list[EngineEnd]
    """The last end of the engine of each replica."""
    nodes: list[Node]
    """The nodes that live, by address."""


class Offered(msgspec.Struct, frozen=True, tag=True):
    """The reply with the place that is reserved for an engine; None if an engine of the replica lives already."""

    spot: LaunchPlace | None


class Started(msgspec.Struct, frozen=True, tag=True):
    """The reply with the engine that was started; None if none was."""

    engine: Engine | None


class Done(msgspec.Struct, frozen=True, tag=True):
    """The reply that a command without a result was carried out."""


class Waits(msgspec.Struct, frozen=True, tag=True):
    """The reply that no node has room for the engine now."""

    why: str
    """The reason as a sentence."""
    is_full: bool = False
    """True if there are suitable nodes without room."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The reply that the node cannot start the engine."""

    why: str


class Unreachable(msgspec.Struct, frozen=True, tag=True):
    """The reply that the cluster, or the node in question, does not answer."""

    why: str


Answer = Connected | ClusterState | Offered | Started | Done | Waits | Refused | Unreachable


class NumberedCall(msgspec.Struct, frozen=True):
    """A line to the driver: a call and its number."""

    number: int
    call: Call


class NumberedAnswer(msgspec.Struct, frozen=True):
    """A line from the driver: an answer, and the number of the call that it answers.

    The number is 0 where nobody called: the driver has connected, or cannot connect.
    """

    number: int
    answer: Answer
