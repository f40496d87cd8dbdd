"""The conversation with one engine: hello, heartbeats both ways, a new socket whenever the old one's engine is gone.

Moves the protocol's structs and tells a listener when the engine comes and goes. Knows nothing of requests or usage.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from typing import Protocol

import msgspec
import structlog
import zmq

from engine.curve import Peer, connect_as
from engine.protocol import (
    DEAD_AFTER_S,
    DEAD_ALONE_AFTER_S,
    HEARTBEAT_INTERVAL_S,
    MAX_MESSAGE_BYTES,
    PROTOCOL_MINOR,
    PROTOCOL_VERSION,
    EngineMessage,
    GatewayMessage,
    Goodbye,
    Heartbeat,
    Hello,
    Refused,
    Silence,
    Welcome,
    decode_from_engine,
    encode,
)
from gateway.backends.engine.frames import Frames

log = structlog.get_logger(__name__)

RECONNECT_S = 0.2
REFUSED_RETRY_S = 2.0
SEND_HIGH_WATER_MARK = 10_000
GOODBYE_LINGER_MS = 500


MAX_SOCKETS = 16_384
"""The most sockets of one context; a link has four."""


def engine_context() -> zmq.Context[zmq.Socket[bytes]]:
    """Return a context for the links of many engines, which costs one thread in all."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
    return context


class EngineGone(Exception):
    """The error for an engine that is not there, refuses us or does not answer; the message says which."""


class EngineListener(Protocol):
    """The interface of a link's owner, which the link calls. No method may wait."""

    def connected(self, welcome: Welcome) -> None:
        """Accept requests for an engine that has connected."""

    def received(self, message: EngineMessage) -> None:
        """Process a message of the engine, any but Welcome, Refused and a Heartbeat without stats."""

    def disconnected(self, reason: str) -> None:
        """End all requests that were under way on the engine. Called once after each `connected`."""


class EngineLink:
    """Keeps one gateway connected to one engine from `start` to `stop`.

    detail: the state of the connection in words that clients may see, so never with the endpoint.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        database_id: str,
        model_digest: str,
        listener: EngineListener,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
        peer: Peer | None = None,
        has_other: Callable[[], bool] = lambda: True,
    ) -> None:
        """Prepare the link; `start` connects.

        context: the ZeroMQ context; links that share one have one thread together. None: this link has its own.
        peer: the keys for an endpoint that is guarded by them.
        has_other: tells whether another engine serves in place of this one; while none does, the link waits longer for
        a silent engine, which may only be slow.
        """
        self.detail = "not started"
        self.endpoint = endpoint
        self._database_id = database_id
        self._model_digest = model_digest
        self._listener = listener
        self._peer = peer
        self._context = context
        self._owns_context = context is None
        self._frames: Frames | None = None
        self._engine_id: str | None = None
        self._has_other = has_other
        self._silence = Silence(0.0)
        self._linger_ms = 0
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to connect to the engine; from now on a connection that is lost is made again."""
        if self._owns_context:
            self._context = zmq.Context()
        self._task = asyncio.create_task(self._keep_connected())

    async def stop(self) -> None:
        """Say goodbye to the engine, and close the connection; call the listener's `disconnected` if there was one."""
        if self._task is None or self._context is None:
            return
        with contextlib.suppress(EngineGone):
            self.send(Goodbye())
            self._linger_ms = GOODBYE_LINGER_MS
        self._stopping = True
        self._task.cancel()
        await asyncio.wait([self._task])
        self.detail = "stopped"
        if self._owns_context:
            await asyncio.to_thread(self._context.term)  # waits for the goodbye to leave

    def send(self, message: GatewayMessage) -> None:
        """Hand a message to the socket without waiting.

        Raises EngineGone: when no engine is there to read it.
        """
        if self._engine_id is None or self._frames is None:
            raise EngineGone(self.detail)
        _send_message(self._frames, message)

    async def _keep_connected(self) -> None:
        # A flag too: a task group that is cancelled just as one of its tasks fails raises the failure alone.
        while not self._stopping:
            pause_s = RECONNECT_S
            try:
                await self._session()
            except* _RefusedHello:
                pause_s = REFUSED_RETRY_S
            except* EngineGone:
                pass
            except* zmq.ZMQError as unusable:
                self.detail = "the engine's endpoint cannot be used"
                log.error("engine_endpoint_unusable", endpoint=self.endpoint, error=str(unusable.exceptions[0]))
            except* Exception as failures:
                self.detail = "the conversation with the engine failed in this gateway"
                log.error("engine_link_failed", endpoint=self.endpoint, exc_info=failures)
            if not self._stopping:
                await asyncio.sleep(pause_s)

    async def _session(self) -> None:
        """Talk to the engine over one socket, from its hello until the engine is gone.

        Each socket has a new identity, so nothing of an old conversation can reach a new one.
        """
        assert self._context is not None
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, uuid.uuid4().hex.encode())
        socket.setsockopt(zmq.SNDHWM, SEND_HIGH_WATER_MARK)
        socket.setsockopt(zmq.RCVHWM, 0)  # the frames that the engine may send are bounded by its window
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        socket.setsockopt(zmq.IPV6, "[" in self.endpoint)
        if self._peer is not None:
            connect_as(socket, self._peer)
        monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._frames, events = Frames(socket), Frames(monitor)
        try:
            socket.connect(self.endpoint)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_watch(events))
                await self._greet(self._frames)
                tasks.create_task(self._beat(self._frames))
                tasks.create_task(self._receive(self._frames))
        except* EngineGone as gone:
            self.detail = str(gone.exceptions[0])
            raise
        finally:
            self._frames.stop()
            events.stop()
            self._frames = None
            socket.disable_monitor()
            monitor.close(linger=0)
            socket.close(linger=self._linger_ms)
            if self._engine_id is not None:
                self._engine_id = None
                log.warning("engine_disconnected", endpoint=self.endpoint)
                self._listener.disconnected(self.detail)

    async def _greet(self, frames: Frames) -> None:
        self.detail = "waiting for an engine"
        _send_message(frames, Hello(PROTOCOL_VERSION, uuid.uuid4().hex, self._database_id, PROTOCOL_MINOR))
        try:
            async with asyncio.timeout(DEAD_AFTER_S):
                answer, *more = map(_decode, await frames.take())
        except TimeoutError:
            raise EngineGone("no engine answers") from None
        if isinstance(answer, Refused):
            raise _RefusedHello(f"the engine refuses this gateway: {answer.reason}")
        if not isinstance(answer, Welcome):
            raise EngineGone(f"the engine answered hello with {type(answer).__name__}")
        if answer.model_digest != self._model_digest:
            raise _RefusedHello("the engine serves another base model than this gateway")
        self._engine_id = answer.engine_id
        self._silence.note_message(asyncio.get_running_loop().time())
        self.detail = "ready"
        log.info("engine_connected", endpoint=self.endpoint, engine_id=answer.engine_id, credits=answer.credits)
        self._listener.connected(answer)
        for message in more:
            self._handle(message)

    async def _receive(self, frames: Frames) -> None:
        loop = asyncio.get_running_loop()
        while True:
            came = await frames.take()
            self._silence.note_message(loop.time())
            for frame in came:
                self._handle(_decode(frame))

    def _handle(self, message: EngineMessage) -> None:
        if isinstance(message, Refused):
            raise EngineGone(f"the engine ended the session: {message.reason}")
        if isinstance(message, Welcome):
            raise EngineGone("the engine greeted twice")
        if not isinstance(message, Heartbeat) or message.stats is not None:
            self._listener.received(message)

    async def _beat(self, frames: Frames) -> None:
        """Send heartbeats until the engine is lost.

        Raises EngineGone: when the engine has been silent for `DEAD_AFTER_S`, or for `DEAD_ALONE_AFTER_S` where no
        other serves in its place.
        """
        loop = asyncio.get_running_loop()
        sequence, beat_s = 0, loop.time()
        while True:
            now_s = loop.time()
            limit_s = DEAD_AFTER_S if self._has_other() else DEAD_ALONE_AFTER_S
            if self._silence.is_over(limit_s, now_s):
                raise EngineGone(f"the engine missed {limit_s / HEARTBEAT_INTERVAL_S:g} heartbeats")
            if now_s >= beat_s:
                _send_message(frames, Heartbeat(sequence))
                sequence, beat_s = sequence + 1, now_s + HEARTBEAT_INTERVAL_S
            await asyncio.sleep(min(beat_s - now_s, self._silence.next_look_s(limit_s)))


class _RefusedHello(EngineGone):
    """The error for an engine that refuses this gateway, so that trying again soon is of no use."""


async def _watch(events: Frames) -> None:
    """Wait until the engine closes the connection, which shows long before heartbeats are missed.

    Raises EngineGone: when the connection is closed.
    """
    await events.take()
    raise EngineGone("the engine closed the connection")


def _send_message(frames: Frames, message: GatewayMessage) -> None:
    try:
        frames.send(encode(message))
    except zmq.Again:
        raise EngineGone("the engine does not read its messages") from None
    except zmq.ZMQError as error:
        raise EngineGone(str(error)) from None


def _decode(frame: bytes) -> EngineMessage:
    try:
        message: EngineMessage = decode_from_engine(frame)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EngineGone(f"the engine sent a message that does not decode: {error}") from None
    return message
