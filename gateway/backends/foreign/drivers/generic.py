"""The driver of servers whose version was not tried with the driver of their kind.

Such servers are asked by OpenAI's protocol alone: text in, text out. Nobody knows which other fields an untried version
understands, so no field beyond OpenAI's is sent on which a reply depends. Adapters answer where the kind of server
names them as models, each once a probe has shown that it is not the base which answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gateway.backends.base import Feature
from gateway.backends.foreign.driver import MAX_CHOICES, AdapterWay, Framing, Pooled, Request, ServerInfo, adapter_of
from gateway.backends.foreign.drivers.openai import FEATURES, OpenAIDriver
from gateway.backends.foreign.drivers.openai_chunks import ChunkReader
from gateway.backends.foreign.server import Server
from gateway.backends.foreign.versions import VersionRange
from gateway.backends.generation import Generation

Inspect = Callable[[Server, float], Awaitable[ServerInfo]]


def _no_fields(generation: Generation) -> Mapping[str, Any]:
    return {}


def digest_as_name(info: ServerInfo, digest: str) -> str:
    """Return the name by which requests call an adapter: its digest."""
    return digest


class GenericDriver:
    """The `Driver` of a version that was not tried."""

    framing: Framing = "events"
    tested: VersionRange | None = None
    generic = None
    separates_caches = False
    takes_ids = False

    def __init__(
        self,
        pooled: Pooled,
        *,
        max_choices: int = MAX_CHOICES,
        extra: Callable[[Generation], Mapping[str, Any]] = _no_fields,
        adapters: AdapterWay | None = None,
        name_of: Callable[[ServerInfo, str], str] = digest_as_name,
        inspect: Inspect | None = None,
    ) -> None:
        """Prepare a driver for servers with OpenAI's fields.

        extra: returns fields that this kind of server has beside OpenAI's, on which no reply depends.
        name_of: returns the name of an adapter in requests, which ends with its digest.
        inspect: asks the server what it serves; None: by the list of models.
        max_choices: the most choices of one request. adapters: the way in which adapters answer; None: there are none.
        """
        self.max_choices = max_choices
        self.adapters = adapters
        self._chat = OpenAIDriver(pooled)
        self._extra = extra
        self._name_of = name_of
        self._inspect = inspect or self._chat.inspect

    def features(self) -> frozenset[Feature]:
        """Return the features that every version of such a server has."""
        return FEATURES

    def request(self, generation: Generation, info: ServerInfo) -> Request:
        """Return a request by OpenAI's protocol, whose model is the adapter's name where there is an adapter."""
        digest = adapter_of(generation)
        model = self._name_of(info, digest) if digest else ""
        return self._chat.request(generation, info, self._extra(generation), model=model)

    def reader(self, generation: Generation) -> ChunkReader:
        """Return a reader of chunks, which refuses a reply of another model than the adapter."""
        return ChunkReader(generation, adapter_of(generation))

    async def inspect(self, server: Server, within_s: float) -> ServerInfo:
        """Ask a server what it serves, in the way of its own kind."""
        return await self._inspect(server, within_s)
