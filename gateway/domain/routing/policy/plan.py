"""What a policy makes of one request: which models are tried, on which errors another follows, and why. Plain data."""

from __future__ import annotations

import msgspec

from gateway.domain.routing.policy.document import ErrorKind


class Step(msgspec.Struct, frozen=True):
    """One attempt at a request."""

    target: str
    """The model string that is tried."""
    path: str
    """The path of the target's node in the document."""
    then: dict[ErrorKind, int] = {}
    """For each error after which something else is tried, the number of the step that follows, always a later one."""
    first_token_ms: int | None = None
    """How long the attempt may take to its first token, where a step follows a timeout."""


class Edge(msgspec.Struct, frozen=True):
    """One decision of the walk."""

    path: str
    """The path of the node that decided, or of a branch that was passed over."""
    reason: str
    """The decision in words."""


class Plan(msgspec.Struct, frozen=True):
    """A policy's plan for one request."""

    steps: tuple[Step, ...]
    """The attempts; the first one is made first. None where no target of the policy can be used."""
    trace: tuple[Edge, ...]
    """The decisions in the order in which they were made."""
