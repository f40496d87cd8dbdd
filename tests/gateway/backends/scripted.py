"""An engine that sends what a test tells it to, over the real socket and protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TypeVar

import zmq
import zmq.asyncio

from engine.protocol import (
    PROTOCOL_MINOR,
    PROTOCOL_VERSION,
    EngineLimits,
    EngineMessage,
    GatewayMessage,
    GenerateRequest,
    Heartbeat,
    Hello,
    UsageRecord,
    Welcome,
    decode_from_gateway,
    encode,
)
from gateway.backends.usage import Acknowledged, Count
from tests.patience import PATIENCE_S

T = TypeVar("T")

LIMITS = EngineLimits(max_model_len=512, max_num_seqs=4, max_waiting=4, block_size=16, num_blocks=64)


class ScriptedEngine:
    """An engine's end of the connection, driven by the test.

    `expect` returns the gateway's next message, and skips heartbeats unless one is expected; another message than the
    expected one is an AssertionError.
    """

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.bind(endpoint)
        self._gateway = b""

    async def expect(self, kind: type[T], within_s: float = PATIENCE_S) -> T:
        async with asyncio.timeout(within_s):
            while True:
                self._gateway, frame = await self._socket.recv_multipart()
                message: GatewayMessage = decode_from_gateway(frame)
                if kind is Heartbeat or not isinstance(message, Heartbeat):
                    assert isinstance(message, kind), message
                    return message

    async def send(self, message: EngineMessage) -> None:
        await self.send_frame(encode(message))

    async def send_frame(self, frame: bytes) -> None:
        """Send raw bytes to the gateway, which need not be a message."""
        await self._socket.send_multipart([self._gateway, frame])

    async def welcome(self, *, credits: int = 8, model_digest: str = "digest", minor: int = PROTOCOL_MINOR) -> Hello:
        hello = await self.expect(Hello)
        await self.send(Welcome(PROTOCOL_VERSION, "engine", model_digest, LIMITS, credits, minor=minor))
        return hello

    def close(self) -> None:
        self._context.destroy(linger=0)


class ListSink:
    """A usage sink that stores everything a backend records.

    engine_ids: the id of the engine of each record. refused_ids: the ids of requests that were refused.
    """

    def __init__(self) -> None:
        self.records: list[UsageRecord] = []
        self.sources: list[Acknowledged | None] = []
        self.engine_ids: list[str] = []
        self.refused_ids: list[str] = []
        self.superseded_records: list[UsageRecord] = []
        self.superseded_sources: list[Acknowledged | None] = []
        self.given_up_ids: list[str] = []
        self.dispatched_ids: list[str] = []
        self.counts: list[Count] = []
        self._changed = asyncio.Event()

    def dispatched(self, request: GenerateRequest, engine_id: str, *, num_prompt_tokens: int | None = None) -> None:
        self.dispatched_ids.append(request.request_id)

    def progressed(self, counts: list[Count]) -> None:
        self.counts += counts

    def record(
        self,
        usage: UsageRecord,
        *,
        engine_id: str,
        source: Acknowledged | None,
        ttft_ms: float | None,
        latency_ms: float | None,
        refused: bool = False,
    ) -> None:
        self.refused_ids += [usage.request_id] * refused
        self.records.append(usage)
        self.sources.append(source)
        self.engine_ids.append(engine_id)
        self._changed.set()

    def superseded(self, usage: UsageRecord, *, engine_id: str, source: Acknowledged | None) -> None:
        self.superseded_records.append(usage)
        self.superseded_sources.append(source)

    def given_up(self, request_ids: Collection[str]) -> None:
        self.given_up_ids += request_ids

    async def wait_for(self, count: int) -> list[UsageRecord]:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.records) < count:
                await self._changed.wait()
                self._changed.clear()
        return self.records
