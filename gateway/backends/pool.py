"""A pool: the replicas that serve one base model under one name, one of which takes each request.

A pool serves one revision at a time: a base model with the settings of its engines. A request stays with the revision
that it was prepared for, whatever the pool serves by the time it is sent. Knows neither rows nor who starts engines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

import msgspec

from engine.protocol import GenerateRequest
from gateway.backends.base import Backend, Capabilities, Fit, Message, Model, PreparedPrompt, as_it_is
from gateway.backends.engine.snapshot import EngineSnapshot
from gateway.domain.errors import ENGINE_UNAVAILABLE, Overloaded
from gateway.text.options import USUAL, Rendering
from gateway.text.tokenizer import Tokenizer
from gateway.text.tools.tool import Tool

RETRY_AFTER_S = 1.0
MAX_IN_FLIGHT = 1 << 20
"""What is admitted while no replica is there to say what it takes."""


class ManagedBackend(Backend, Protocol):
    """A backend that a gateway starts, watches and stops."""

    @property
    def num_in_flight(self) -> int:
        """The requests of this gateway that the backend works on."""

    def start(self) -> None:
        """Begin to connect; what is behind the backend may come later."""

    async def stop(self) -> None:
        """End the conversation; what still runs fails."""

    def snapshot(self, model: str) -> EngineSnapshot:
        """Return what an operator sees of the backend now; `model` is the name of its pool."""


class Replica(msgspec.Struct, eq=False):
    """One backend of a pool's revision."""

    id: str
    backend: ManagedBackend
    is_draining: bool = False
    """Whether new requests go elsewhere as long as there is another replica."""


class PoolRevision:
    """The replicas of one revision of a pool, with what is known of its base model without any of them."""

    def __init__(self, name: str, model: Model, replicas: Sequence[Replica] = ()) -> None:
        """name: the public name of the pool."""
        self.name = name
        self.model = model
        self._replicas: dict[str, Replica] = {replica.id: replica for replica in replicas}

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas.values())

    def add(self, replica: Replica) -> None:
        self._replicas[replica.id] = replica

    def remove(self, replica_id: str) -> Replica | None:
        """Send no request to a replica any more; return it."""
        return self._replicas.pop(replica_id, None)

    def find(self, replica_id: str) -> Replica | None:
        return self._replicas.get(replica_id)

    # what depends on the base model alone: see `gateway.backends.base.Model`

    @property
    def capabilities(self) -> Capabilities:
        """The bounds of one replica, whichever: all of a revision have the same settings."""
        any_replica = next(iter(self._replicas.values()), None)
        return any_replica.backend.capabilities if any_replica is not None else self.model.capabilities

    @property
    def max_in_flight(self) -> int:
        """The most choices that the ready replicas run and keep waiting, all together."""
        return sum(each.backend.capabilities.max_in_flight for each in self._ready()) or MAX_IN_FLIGHT

    @property
    def tokenizer(self) -> Tokenizer:
        return self.model.tokenizer

    def prepare_chat(
        self,
        messages: list[Message],
        tools: Sequence[Tool] = (),
        rendering: Rendering = USUAL,
        fit: Fit = as_it_is,
    ) -> PreparedPrompt:
        return self.model.prepare_chat(messages, tools, rendering, fit)

    def prepare_text(self, prompt: str | list[int], field: str, *, add_special_tokens: bool = True) -> PreparedPrompt:
        return self.model.prepare_text(prompt, field, add_special_tokens=add_special_tokens)

    # which replica

    @property
    def ready(self) -> bool:
        """Whether a replica takes requests."""
        return any(each.backend.health().ready for each in self._replicas.values())

    @property
    def detail(self) -> str:
        """Why no replica is ready, in words that anybody may read."""
        return "; ".join(each.backend.health().detail for each in self._replicas.values()) or "no replica runs"

    def pick(self, request: GenerateRequest | None = None, *, tried: Collection[str] = ()) -> Replica:
        """Return the replica for a request, none of those that were tried.

        Raises Overloaded: when no other replica is ready.
        """
        ready = [each for each in self._ready() if each.id not in tried]
        if not ready:
            raise Overloaded(
                f"No engine is ready for '{self.name}' ({self.detail}).",
                code=ENGINE_UNAVAILABLE,
                retry_after_s=RETRY_AFTER_S,
            )
        return min(ready, key=lambda each: each.backend.num_in_flight)

    def _ready(self) -> list[Replica]:
        """Return the ready replicas that do not drain; where there is none, those that do."""
        ready = [each for each in self._replicas.values() if each.backend.health().ready]
        return [each for each in ready if not each.is_draining] or ready


class Pool:
    """One name under which a base model is served."""

    def __init__(self, name: str, serving: PoolRevision, *, created: int) -> None:
        self.name = name
        """The public name."""
        self.serving = serving
        """The revision that takes new requests."""
        self.others: list[PoolRevision] = []
        """Revisions that are to serve, or that still answer older requests."""
        self.created = created
        """The Unix time in seconds that /v1/models shows."""

    @property
    def backends(self) -> list[ManagedBackend]:
        """The backends of all revisions, those of the serving one first."""
        return [replica.backend for revision in (self.serving, *self.others) for replica in revision]

    @property
    def ready(self) -> bool:
        """Whether a replica of the serving revision takes requests."""
        return self.serving.ready
