"""The plan of a policy for one request: the targets in their order, the errors that lead to the next one, and why."""

from __future__ import annotations

import re

import msgspec

from gateway.domain.routing.policy.document import Accept, Outcome


class Copy(msgspec.Struct, frozen=True):
    """A copy of the request, which goes out once the request is answered."""

    target: str
    path: str
    """The path of the node that asks for the copy."""
    payer: str | None = None
    """The id of the project that pays for the copy; None: the project that sends the request."""


class Step(msgspec.Struct, frozen=True):
    """One attempt at a request."""

    target: str
    """The model string that is tried."""
    path: str
    """The path of the target's node in the document."""
    then: dict[Outcome, int] = {}
    """The number of the step that follows, by the outcome of this one; always a later step."""
    first_token_ms: int | None = None
    """The milliseconds that the attempt may take to its first token, where another step follows a timeout."""
    accept: Accept | None = None
    """The check on the answer, where another step follows one that is rejected."""
    hedge_ms: float | None = None
    """The milliseconds after which the target is tried on another replica as well if no first token has come."""
    wait_ms: int = 0
    """The milliseconds to wait before the attempt, which begins a further round."""
    copies: tuple[Copy, ...] = ()
    """The copies of the request that are made if this attempt answers."""


class Edge(msgspec.Struct, frozen=True):
    """One decision of the walk."""

    path: str
    """The path of the node that decided, or of a branch that was passed over."""
    reason: str
    """The decision in words."""


_EDGE = re.compile(r"\.(\w+)\.(\w+(?:\[\d+\])?)(?:\.node)?")


def edges_to(path: str) -> list[tuple[str, str]]:
    """Return the nodes on the way from the root to a node, by the node's path.

    Each edge is the path of a node on the way, and the branch that is taken there.
    """
    return [(f"{path[: found.start()]}.{found[1]}", found[2]) for found in _EDGE.finditer(path)]


class Plan(msgspec.Struct, frozen=True):
    """A policy's plan for one request."""

    steps: tuple[Step, ...]
    """The attempts, the first one first. Empty where no target of the policy can be used."""
    trace: tuple[Edge, ...]
    """The decisions in the order in which they were made."""
