"""Backends over servers at a URL, and requests to them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec

from engine.protocol import GenerateRequest, SamplingParams, Usage
from gateway.backends.base import Model
from gateway.backends.foreign.backend import ForeignBackend
from gateway.backends.foreign.connection import UNREAD_FOR_S
from gateway.backends.foreign.driver import Content, Pooled, ReplicaName
from gateway.backends.foreign.drivers import driver_of
from gateway.backends.foreign.model import OpaqueModel
from gateway.backends.foreign.own_keys import OwnKey, no_own_key
from gateway.backends.foreign.server import Server
from gateway.backends.generation import Generation, Piece
from gateway.domain.pools.drivers import Driver
from gateway.domain.pools.foreign_settings import ForeignSettings
from gateway.domain.routing.foreign_usage import TEMPLATE_TOKENS
from gateway.text.conversation import Conversation
from gateway.text.tools.tool import ToolUse
from tests.gateway.backends.scripted import ListSink
from tests.patience import PATIENCE_S

FAST = ForeignSettings(health_seconds=0.05, first_token_seconds=5.0, idle_seconds=5.0, total_seconds=20.0)

NAME = ReplicaName("theirs", "replica_1")


async def anywhere(url: str) -> str:
    """Return the loopback address, whatever the URL."""
    return "127.0.0.1"


@asynccontextmanager
async def backend_of(
    url: str,
    sink: ListSink,
    *,
    driver: Driver = "openai",
    model: Model | None = None,
    settings: ForeignSettings = FAST,
    key: str = "",
    unread_s: float = UNREAD_FOR_S,
    is_outside: bool = False,
    waits: bool = True,
    content: Content | None = None,
    own_key: OwnKey = no_own_key,
) -> AsyncIterator[ForeignBackend]:
    """Give a backend that is ready, unless `waits` is false.

    model: the base model; None: one whose tokenizer nobody here has. unread_s: the seconds for which a reader may not
    read. is_outside: True: the internet reaches the server's address. content: reads the adapter store; None: there are
    no adapters. own_key: returns the key that a project has brought.
    """
    found = model or OpaqueModel("f" * 64, settings)
    pooled = Pooled(found, settings, has_tokenizer=model is not None, content=content)

    async def authorize() -> str:
        return key

    server = Server(
        url,
        anywhere,
        ssl.create_default_context,
        connect_s=settings.connect_seconds,
        unread_s=unread_s,
        is_outside=lambda address: is_outside,
    )
    backend = ForeignBackend(server, driver_of(driver, pooled), pooled, sink, authorize, NAME, own_key)
    backend.start()
    try:
        if waits:
            await until_ready(backend)
        yield backend
    finally:
        await backend.stop()


async def until_ready(backend: ForeignBackend, *, ready: bool = True) -> None:
    await until(lambda: backend.health().ready is ready)


async def until(holds: Callable[[], object]) -> None:
    """Wait until a condition holds that no event announces."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)


def asking(
    text: str = "Say hello.",
    *,
    request_id: str = "req_1",
    max_tokens: int = 16,
    n: int = 1,
    stop: tuple[str, ...] = (),
    tools: ToolUse | None = None,
    **sampling: Any,
) -> Generation:
    """Return a request for a chat with one message.

    n: the number of choices. tools: the tools that may be called; None: none.
    """
    conversation = Conversation([{"role": "user", "content": text}], tools)
    request = GenerateRequest(
        request_id, [], SamplingParams(max_tokens=max_tokens, **sampling), "tenant", n=n, meter=b"tag"
    )
    return Generation(
        request, stop, tools, conversation=conversation, num_prompt_tokens=len(text) + 32 + TEMPLATE_TOKENS
    )


class Collected(msgspec.Struct):
    """A collected answer: its text, pieces and usage."""

    text: str = ""
    pieces: list[Piece] = []
    usage: Usage | None = None

    @property
    def finish_reasons(self) -> list[str | None]:
        return [each.finish_reason for each in self.pieces if each.finish_reason is not None]


async def collect(backend: ForeignBackend, generation: Generation, *, collected: Collected | None = None) -> Collected:
    """Collect the whole answer of a backend.

    collected: filled with what came, also where reading raises.
    """
    collected = collected if collected is not None else Collected()
    collected.pieces = []
    async with aclosing(backend.generate(generation)) as items:
        async for item in items:
            if isinstance(item, Usage):
                collected.usage = item
            elif isinstance(item, list):
                collected.pieces += item
                collected.text += "".join(piece.text for piece in item)
    return collected
