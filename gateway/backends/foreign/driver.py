"""The interface of a driver: how one kind of server is asked, how its replies are read, and how it is checked.

A driver holds no connection and no state of a request but its `Reader`. It knows nothing of tenants, usage or limits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import msgspec

from adapters.ref import digest_of
from gateway.backends.base import Capabilities, Feature, Model
from gateway.backends.foreign.reply import Event
from gateway.backends.foreign.server import Proof, Server
from gateway.backends.foreign.versions import VersionRange
from gateway.backends.generation import Generation
from gateway.domain.pools.foreign_settings import ForeignSettings


class ReplicaName(msgspec.Struct, frozen=True):
    """The names by which an operator knows a server."""

    pool: str
    """The name of the pool."""
    replica: str
    """The id of the replica, as lists of replicas have it."""

    @property
    def fields(self) -> dict[str, str]:
        """The names as fields of a log line."""
        return {"pool": self.pool, "replica": self.replica}


class ServerInfo(msgspec.Struct, frozen=True):
    """The facts about a server from its last answer to a health check."""

    served_model: str = ""
    """The name by which requests ask for the model."""
    max_model_len: int | None = None
    """The longest prompt and completion together; None where the server does not report it."""
    max_running: int | None = None
    """The number of choices that the server computes at once; None where it does not report it."""
    adapters: frozenset[str] | None = frozenset()
    """Digests of the adapters that the server lists; None where it lists none, whatever it has."""
    inputs: frozenset[str] = frozenset()
    """The names of the inputs that the server's model takes, where models differ in that."""
    places: tuple[str, ...] = ()
    """The digests of the adapters by their numbers at the server, "" for an unknown one, where requests use numbers."""


class Request(msgspec.Struct, frozen=True):
    """A request to a server that generates."""

    path: str
    """The path of the route."""
    body: bytes
    """The body as JSON."""
    proof: Proof | None = None
    """A question that a new connection must answer before the request is sent over it."""


class Reader(Protocol):
    """Reads the events of one reply."""

    def read(self, data: bytes) -> Event:
        """Read the data of one event.

        Raises BadReply: when that is not of the server's protocol.
        Raises ReplyRefused: when the reply is one that nobody may get.
        Raises ServerRefused: when the server says within the stream that it failed.
        """


@runtime_checkable
class EndReader(Protocol):
    """A `Reader` of a protocol in which a reply may end without an event that says so."""

    def end(self) -> Event:
        """Return the event that the regular end of the stream stands for."""


class AdapterWay(Protocol):
    """The way in which one kind of server holds adapters.

    The server knows adapters by the digests of their contents.
    """

    can_load: bool
    """True where adapters are loaded and unloaded while the server runs."""
    takes_names: bool
    """True where requests name adapters, so that the server may answer an unknown name from the base in silence."""
    has_to_differ: bool
    """True where an adapter answers only once its token was seen to have another log-probability than the base's: the
    way was not tried with the server's version."""

    missing: re.Pattern[str] | None
    """A pattern for the errors that say that the server does not have an adapter; None: status 404 says it."""

    async def load(self, server: Server, digest: str, within_s: float) -> None:
        """Load an adapter; one that is loaded already stays.

        within_s: the most seconds to wait for the server's answer.

        Raises ServerRefused: when the server refuses the adapter; with the status 404, when it does not find the
        content.
        Raises ServerGone: when the server does not answer.
        """

    async def unload(self, server: Server, digest: str, within_s: float) -> None:
        """Unload an adapter; one that is not loaded is no error.

        within_s: the most seconds to wait for the server's answer.

        Raises ServerRefused: when the server refuses.
        Raises ServerGone: when the server does not answer.
        """

    async def try_out(self, server: Server, info: ServerInfo, digest: str, within_s: float) -> float:
        """Generate one token with an adapter; return its log-probability.

        digest: "" tries the base. within_s: the most seconds to wait for the server's answer.

        Raises ServerRefused: when the server does not know the adapter.
        Raises ServerGone, BadReply: when the server does not answer as it should.
        """


MAX_CHOICES = 128
"""The most choices of one request where the server has no bound of its own, as in `ForeignSettings.max_choices`."""

Framing = Literal["events", "lines"]
"""The form of a stream: server-sent events, or lines of JSON."""


class Driver(Protocol):
    """The interface to one kind of server: its requests, its replies and its health."""

    takes_ids: bool
    """True where requests of this pool hold token ids, and replies too; else both are text."""

    @property
    def tested(self) -> VersionRange | None:
        """The versions of the server with which the driver was tested; None if the server's kind has no versions."""

    @property
    def generic(self) -> Driver | None:
        """The driver for servers of other versions; None where this driver serves them as well."""

    @property
    def separates_caches(self) -> bool:
        """True where the prompts of each tenant have a cache of their own at the server."""

    @property
    def max_choices(self) -> int:
        """The most choices of one request."""

    @property
    def framing(self) -> Framing:
        """The form in which the parts of a reply come."""

    @property
    def adapters(self) -> AdapterWay | None:
        """The way in which adapters answer; None where the server has the base alone."""

    def features(self) -> frozenset[Feature]:
        """Return the features beyond text that requests of this pool may ask for."""

    def request(self, generation: Generation, info: ServerInfo) -> Request:
        """Return the request for a generation."""

    def reader(self, generation: Generation) -> Reader:
        """Return a reader for the reply to a generation."""

    async def inspect(self, server: Server, within_s: float) -> ServerInfo:
        """Ask a server for its facts.

        within_s: the most seconds to wait for the server's answers.

        Raises ServerGone or ServerRefused: when the server does not serve.
        Raises BadReply: when it is another kind of server.
        """


Content = Callable[[str], AbstractContextManager[Path]]
"""A function that returns the folder of an adapter's content by its digest, as `AdapterStore.reading`.

Raises AdapterRejected, StoreFailure or OSError: when the store does not have it, or cannot be read.
"""


class Pooled(msgspec.Struct, frozen=True):
    """A revision of a pool, as far as its driver needs it."""

    model: Model
    settings: ForeignSettings
    has_tokenizer: bool
    """True where the model's tokenizer is known here."""
    content: Content | None = None
    """The reader of the adapter store, for servers that adapters are sent to; None for other servers."""

    def without_adapters(self) -> Pooled:
        """Return the same revision for a pool whose servers have the base model alone."""
        settings = msgspec.structs.replace(
            self.settings, adapter_folder="", preloaded_adapters=False, upload_adapters=False
        )
        return msgspec.structs.replace(self, settings=settings)


def adapter_of(generation: Generation) -> str:
    """Return the digest of the adapter that a generation asks for, "" for the base."""
    key = generation.request.adapter
    return digest_of(key) if key else ""


def capabilities_of(pooled: Pooled, driver: Driver, info: ServerInfo | None) -> Capabilities:
    """Return the bounds of a server, as far as they are known. info: None before it was asked."""
    settings, model = pooled.settings, pooled.model.capabilities
    length = settings.max_model_len or (info.max_model_len if info is not None else None) or model.max_model_len
    return msgspec.structs.replace(
        model,
        max_model_len=length,
        max_choices=min(model.max_choices, settings.max_choices, driver.max_choices),
        max_in_flight=settings.max_in_flight,
        max_running=(info.max_running if info is not None else None) or settings.max_in_flight,
        features=driver.features(),
    )
