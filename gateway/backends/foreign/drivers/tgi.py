"""The driver of Text Generation Inference (TGI), from version 3.0 on: text, by its OpenAI-compatible routes.

Beyond text a request may ask for a seed alone: TGI refuses a `top_p` of 1, has its own form of schemas, and is no
longer developed. Its adapters (`LORA_ADAPTERS`) are not listed by any route, so that none is offered.
"""

from __future__ import annotations

import msgspec

from gateway.backends.base import Feature
from gateway.backends.foreign.driver import Framing, Pooled, Reader, Request, ServerInfo
from gateway.backends.foreign.drivers.openai import OpenAIDriver
from gateway.backends.foreign.errors import text_of
from gateway.backends.foreign.reply import BadReply, ServerRefused
from gateway.backends.foreign.server import Server
from gateway.backends.foreign.versions import VersionRange
from gateway.backends.generation import Generation
from gateway.domain.pools.foreign_settings import MAX_LEN

FEATURES: frozenset[Feature] = frozenset({"seed"})


class _Info(msgspec.Struct, frozen=True):
    """The facts about a server, with only the fields that are read."""

    model_id: str
    max_total_tokens: int = 0
    max_concurrent_requests: int = 0


_decode_info = msgspec.json.Decoder(_Info).decode


class TgiDriver:
    """The `Driver` of TGI."""

    framing: Framing = "events"
    max_choices = 1
    tested: VersionRange | None = VersionRange("/info", "version", (3, 0), (3, 3))
    takes_ids = False
    adapters = None
    generic = None  # it is asked by OpenAI's protocol as it is
    separates_caches = False

    def __init__(self, pooled: Pooled) -> None:
        self._settings = pooled.settings
        self._chat = OpenAIDriver(pooled)

    def features(self) -> frozenset[Feature]:
        """Return the features that TGI's versions have."""
        return FEATURES

    def request(self, generation: Generation, info: ServerInfo) -> Request:
        """Return a request by OpenAI's protocol, without a `top_p` of 1, which TGI refuses."""
        left_out = {"top_p"} if generation.request.sampling.top_p >= 1.0 else frozenset[str]()
        return self._chat.request(generation, info, left_out=left_out)

    def reader(self, generation: Generation) -> Reader:
        """Return a reader of chunks."""
        return self._chat.reader(generation)

    async def inspect(self, server: Server, within_s: float) -> ServerInfo:
        """Return the served model, its length and the requests that TGI runs at once, once its shards answer."""
        health = await server.ask_whole("GET", "/health", within_s=within_s)
        if health.status != 200:
            raise ServerRefused(health.status, text=text_of(health.body))
        reply = await server.ask_whole("GET", "/info", within_s=within_s)
        if reply.status != 200:
            raise ServerRefused(reply.status, text=text_of(reply.body))
        try:
            info = _decode_info(reply.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BadReply("it is no server of TGI") from None
        if self._settings.served_model not in ("", info.model_id):
            raise BadReply("it serves another model")
        length, running = info.max_total_tokens, info.max_concurrent_requests
        return ServerInfo(
            info.model_id, min(length, MAX_LEN) if length > 0 else None, min(running, MAX_LEN) if running > 0 else None
        )
