"""A pool: one base model and the backends that serve it, one of which takes each request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.backends.base import Backend
from gateway.backends.engine.snapshot import EngineSnapshot
from gateway.domain.errors import ENGINE_UNAVAILABLE, Overloaded

RETRY_AFTER_S = 1.0


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


class Pool:
    """name: the public id of the base model. created: Unix time in seconds, what /v1/models shows."""

    def __init__(self, name: str, backends: Sequence[ManagedBackend], *, created: int) -> None:
        assert backends
        self.name = name
        self.backends = tuple(backends)
        self.created = created

    @property
    def any(self) -> Backend:
        """One of them, ready or not: for what depends on the model alone, such as its tokenizer."""
        return self.backends[0]

    @property
    def ready(self) -> bool:
        return any(backend.health().ready for backend in self.backends)

    def pick(self) -> Backend:
        """The ready backend with the fewest requests in flight. Raises Overloaded when none is ready."""
        ready = [backend for backend in self.backends if backend.health().ready]
        if not ready:
            why = "; ".join(backend.health().detail for backend in self.backends)
            raise Overloaded(
                f"No engine is ready to serve the model '{self.name}' ({why}).",
                code=ENGINE_UNAVAILABLE,
                retry_after_s=RETRY_AFTER_S,
            )
        return min(ready, key=lambda backend: backend.num_in_flight)
