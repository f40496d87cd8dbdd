"""The interface of a driver: how one kind of server is asked, read, and looked after.

A driver holds no connection and no state of a request but its `Reader`. It knows nothing of tenants, usage or limits.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from gateway.backends.base import Capabilities, Feature, Model
from gateway.backends.foreign.reply import Event
from gateway.backends.foreign.server import Server
from gateway.backends.generation import Generation
from gateway.domain.pools.foreign_settings import ForeignSettings


class Look(msgspec.Struct, frozen=True):
    """A server as it was seen a moment ago."""

    served_model: str = ""
    """The name by which requests ask for the model."""
    max_model_len: int | None = None
    """The longest prompt and completion together, where the server says it."""
    max_running: int | None = None
    """How many choices it computes at once, where it says so."""
    adapters: frozenset[str] = frozenset()
    """Content keys of the adapters that it can use now."""
    places: tuple[tuple[str, int], ...] = ()
    """The content key and the number at the server of each adapter, where requests name adapters by number."""
    num_places: int = 0
    """How many adapters the server holds by number, those of others included."""


class Request(msgspec.Struct, frozen=True):
    """A request to a server that generates."""

    path: str
    body: bytes


class Reader(Protocol):
    """Reads the events of one reply."""

    def read(self, data: bytes) -> Event:
        """Return what one event says.

        Raises BadReply: where that is not of the server's protocol.
        Raises ReplyRefused: where the reply is one that nobody may get.
        Raises ServerRefused: where the server says within the stream that it failed.
        """


class Driver(Protocol):
    """One kind of server."""

    takes_ids: bool
    """Whether requests of this pool hold token ids, and replies too; else both are text."""

    def features(self) -> frozenset[Feature]:
        """Return what requests of this pool may ask for beyond text."""

    def request(self, generation: Generation, look: Look) -> Request:
        """Return the request for a generation."""

    def reader(self, generation: Generation) -> Reader:
        """Return what reads the reply to a generation."""

    async def look(self, server: Server, within_s: float) -> Look:
        """Look at a server's health.

        Raises ServerGone or ServerRefused: where it does not serve.
        Raises BadReply: where it is another kind of server.
        """


class Pooled(msgspec.Struct, frozen=True):
    """What a driver is made for: one revision of a pool."""

    model: Model
    settings: ForeignSettings
    has_tokenizer: bool
    """Whether the model's tokenizer is known here."""


def capabilities_of(pooled: Pooled, driver: Driver, look: Look | None) -> Capabilities:
    """Return the bounds of a server, as far as they are known. look: None before it was seen."""
    settings, model = pooled.settings, pooled.model.capabilities
    length = settings.max_model_len or (look.max_model_len if look is not None else None) or model.max_model_len
    return msgspec.structs.replace(
        model,
        max_model_len=length,
        max_choices=min(model.max_choices, settings.max_choices),
        max_in_flight=settings.max_in_flight,
        max_running=(look.max_running if look is not None else None) or settings.max_in_flight,
        features=driver.features(),
    )
