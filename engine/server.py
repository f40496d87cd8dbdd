"""The engine's side of the protocol: gateway sessions, credits, heartbeats, and usage kept until it is acknowledged.

Runs in a thread of its own, so that heartbeats flow while a long step runs. It passes commands to the stepping thread
and sorts that thread's outputs by gateway. It knows nothing of tensors, scheduling or text.
"""

from __future__ import annotations

import logging
import math
import random
import time
import uuid
from collections import deque
from pathlib import Path

import msgspec
import zmq

from engine.curve import Gate
from engine.mailbox import Drain, Drained, Event, Mailbox, ServedElsewhere
from engine.protocol import (
    DEAD_AFTER_S,
    DEAD_ALONE_AFTER_S,
    HEARTBEAT_INTERVAL_S,
    MAX_MESSAGE_BYTES,
    PROTOCOL_MINOR,
    PROTOCOL_VERSION,
    Abort,
    AckUsage,
    AdapterStatus,
    Delta,
    EngineError,
    EngineLimits,
    EngineMessage,
    EngineStats,
    Final,
    GatewayMessage,
    GenerateRequest,
    Goodbye,
    Heartbeat,
    Hello,
    LoadAdapter,
    Refused,
    Silence,
    StepOutputs,
    Submit,
    UnackedUsage,
    UnloadAdapter,
    Usage,
    UsageRecord,
    Welcome,
    decode_from_gateway,
    encode,
    submitted_id,
)
from engine.usage_book import UsageBook
from engine.version import VERSION

log = logging.getLogger(__name__)

SEND_HIGH_WATER_MARK = 1000
MAX_OUTBOX_MESSAGES = 4096
FLUSH_ON_CLOSE_MS = 2000
ACKNOWLEDGE_ON_CLOSE_S = 5.0
AT_WORK_HEARTBEATS = 3
"""Heartbeats for which a gateway counts as one with batch work after its last request of the batch band."""


class Session(msgspec.Struct):
    """A connected gateway."""

    gateway_id: str
    """The id by which the gateway calls itself."""
    database_id: str
    silence: Silence
    """The time without a message, after which the gateway counts as lost."""
    key: str = ""
    """The public key of the gateway's host; "" over a socket of this machine."""
    num_in_flight: int = 0
    """The number of interactive requests that run. The scheduler bounds those of the batch band."""
    submitted_batch_s: float = -math.inf
    """The monotonic time, in seconds, of the gateway's last request in the batch band."""
    heartbeats_sent: int = 0
    outbox: deque[bytes] = msgspec.field(default_factory=deque)
    """Encoded messages that the session's socket would not take yet."""


class InFlight(msgspec.Struct, frozen=True):
    """The facts about a running request by which its usage is billed, whichever gateway is connected when it ends."""

    gateway: bytes
    """The identity of the gateway's connection, as ZeroMQ routes by it."""
    database_id: str
    attempt: int
    meter: bytes
    """The request's opaque bytes, which come back with its usage."""
    num_batch_choices: int
    """The number of choices if the request is of the batch band, else 0."""
    arrived_unix_ns: int = 0
    """When the request arrived, in Unix nanoseconds, if it is traced; else 0."""


class Successor(msgspec.Struct, frozen=True):
    """A request that waits for the end of an earlier attempt at it, which another gateway had sent."""

    gateway: bytes
    """The identity of the gateway's connection, as ZeroMQ routes by it."""
    request: GenerateRequest
    arrived_unix_ns: int
    """When the request arrived, in Unix nanoseconds, where it is traced; else 0."""


class EngineServer:
    """A server that talks to gateways for one engine on one endpoint.

    `run` blocks until the stepping thread posts `Drained`. unattended_s: seconds without any session after which the
    engine drains by itself; 0: never.
    """

    def __init__(
        self,
        endpoint: str,
        model_digest: str,
        limits: EngineLimits,
        mailbox: Mailbox,
        *,
        fingerprint: str = "",
        device: str = "",
        dtype: str = "",
        unattended_s: float = 0.0,
        link_dir: str = "",
    ) -> None:
        """Bind the endpoint.

        link_dir: the folder of this host's keys, with which the endpoint is guarded; "" for an endpoint that others
        cannot reach. fingerprint, device, dtype: as in `protocol.Welcome`.

        Raises zmq.ZMQError: when the endpoint is taken or wrong.
        Raises BadKey: when the host's keys cannot be read.
        """
        self._unattended_s = unattended_s
        self._attended_at_s = time.monotonic()
        self._model_digest = model_digest
        self._limits = limits
        self._fingerprint = fingerprint
        self._device = device
        self._dtype = dtype
        self._mailbox = mailbox
        self._engine_id = uuid.uuid4().hex
        self._credits = limits.max_num_seqs + limits.max_waiting
        self._sessions: dict[bytes, Session] = {}
        self._in_flight: dict[str, InFlight] = {}
        self._successors: dict[str, Successor] = {}
        self._usage = UsageBook()
        self._stats = EngineStats()
        self._drain_requested = False
        self._draining = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDHWM, SEND_HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._gate = Gate(self._context, Path(link_dir)) if link_dir else None
        if self._gate is not None:
            self._gate.guard(self._socket)
        self._socket.setsockopt(zmq.IPV6, "[" in endpoint)
        self._socket.bind(endpoint)

    def run(self) -> None:
        """Serve gateways until the engine is drained and its usage is handed over, if any gateway comes for it."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._mailbox.wake_fd, zmq.POLLIN)
        if self._gate is not None:
            poller.register(self._gate.socket, zmq.POLLIN)
        next_beat_s = time.monotonic()
        ended_s: float | None = None
        while ended_s is None or self._has_usage_to_hand_over(time.monotonic() - ended_s):
            wait_s = max(0.0, next_beat_s - time.monotonic())
            if any(session.outbox for session in self._sessions.values()):
                wait_s = min(wait_s, 0.01)
            poller.poll(math.ceil(wait_s * 1e3))
            if self._gate is not None:
                self._gate.answer()
            self._receive()
            if self._drain_requested and not self._draining:
                self._draining = True  # after this no request follows the command
                self._mailbox.command(Drain())
            for event in self._mailbox.take_events():
                if self._publish(event):
                    ended_s = time.monotonic()
            self._flush_outboxes()
            if time.monotonic() >= next_beat_s:
                next_beat_s = time.monotonic() + HEARTBEAT_INTERVAL_S
                self._beat()
        if len(self._usage):
            log.warning("%d usage records were never acknowledged and end with this process", len(self._usage))
        self._socket.close(linger=FLUSH_ON_CLOSE_MS)
        if self._gate is not None:
            self._gate.close()
        self._context.term()

    def drain(self) -> None:
        """Refuse new requests from now on. May be called from a signal handler or another thread."""
        self._drain_requested = True
        self._mailbox.wake()

    def _has_usage_to_hand_over(self, waited_s: float) -> bool:
        """Tell whether, after the last step, a connected gateway may still acknowledge something.

        waited_s: the seconds since the last step.
        """
        takes_usage = any(session.database_id for session in self._sessions.values())
        return bool(len(self._usage) and takes_usage) and waited_s < ACKNOWLEDGE_ON_CLOSE_S

    # messages of gateways

    def _receive(self) -> None:
        for _ in range(1024):  # bounded, so that outputs are not starved by a flood of requests
            try:
                gateway, frame, key = self._take()
            except zmq.Again:
                return
            except ValueError:
                log.warning("dropped a message that is not one frame")
                continue
            if self._gate is not None and not self._gate.allows(key):
                continue  # its host was removed while it was connected
            try:
                message = decode_from_gateway(frame)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                log.warning("dropped a message that does not decode: %s", error)
                self._refuse(gateway, frame, str(error))
                continue
            self._handle(gateway, message, key)

    def _refuse(self, gateway: bytes, frame: bytes, why: str) -> None:
        """Refuse a message that does not decode.

        A request of a later version is refused alone, so that a replica of that version can have it.
        """
        request_id = submitted_id(frame)
        if request_id is None or gateway not in self._sessions:
            return self._send_message(gateway, Refused(f"message does not decode: {why}"))
        self._sessions[gateway].silence.note_message(time.monotonic())
        message = f"the engine (Lorikeet {VERSION}) is older than the gateway and cannot read this request: {why}"
        error = EngineError("draining", message, retry_after_s=5.0)
        return self._end_unstarted(gateway, request_id, error)

    def _take(self) -> tuple[bytes, bytes, str]:
        """Return the next message: its gateway, its frame, and the public key of the gateway's host.

        The key is "" for connections that are not over TCP.

        Raises zmq.ZMQError: when the socket fails.
        """
        if self._gate is None:
            gateway, frame = self._socket.recv_multipart(zmq.NOBLOCK)
            return gateway, frame, ""
        identity, content = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        return identity.bytes, content.bytes, str(content.get("User-Id"))

    def _handle(self, gateway: bytes, message: GatewayMessage, key: str) -> None:
        if isinstance(message, Hello):
            return self._welcome(gateway, message, key)
        session = self._sessions.get(gateway)
        if session is None:
            return self._send_message(gateway, Refused("say hello first"))
        session.silence.note_message(time.monotonic())
        match message:
            case Submit(request, trace):
                self._submit(gateway, session, request, time.time_ns() if trace else 0)
            case Abort(request_id):
                flight = self._in_flight.get(request_id)
                successor = self._successors.get(request_id)
                if flight is not None and flight.gateway == gateway:
                    self._mailbox.command(message)
                elif successor is not None and successor.gateway == gateway:
                    del self._successors[request_id]
                    self._end_unstarted(gateway, request_id)
            case AckUsage(keys):
                self._usage.acknowledge(keys, session.database_id)
            case LoadAdapter() | UnloadAdapter():
                self._mailbox.command(message)
            case Goodbye():
                self._forget(gateway, "said goodbye")
            case Heartbeat(elsewhere=services):
                if services:
                    self._mailbox.command(ServedElsewhere(services))
        return None

    def _welcome(self, gateway: bytes, hello: Hello, key: str) -> None:
        if hello.version != PROTOCOL_VERSION:
            reason = f"protocol version {hello.version} is not {PROTOCOL_VERSION}: upgrade the older side"
            return self._send_message(gateway, Refused(reason))
        if gateway not in self._sessions:
            self._sessions[gateway] = Session(hello.gateway_id, hello.database_id, Silence(time.monotonic()), key)
            log.info("gateway %s connected", hello.gateway_id)
        self._send_message(
            gateway,
            Welcome(
                PROTOCOL_VERSION,
                self._engine_id,
                self._model_digest,
                self._limits,
                self._credits,
                self._fingerprint,
                self._device,
                self._dtype,
                PROTOCOL_MINOR,
                VERSION,
            ),
        )
        return self._hand_over_usage()

    def _submit(self, gateway: bytes, session: Session, request: GenerateRequest, arrived_unix_ns: int) -> None:
        error = None
        if self._draining:
            error = EngineError("draining", "the engine is shutting down", retry_after_s=5.0)
        elif request.batch is None and session.num_in_flight >= self._credits:
            error = EngineError("queue_full", f"more than {self._credits} requests in flight", retry_after_s=1.0)
        elif (earlier := self._in_flight.get(request.request_id)) is not None:
            if self._takes_over(earlier, gateway, session, request):
                return self._succeed(Successor(gateway, request, arrived_unix_ns))
            error = EngineError("invalid_request", f"request_id {request.request_id} is already running")
        if error is not None:
            return self._end_unstarted(gateway, request.request_id, error)
        return self._start_request(gateway, session, request, arrived_unix_ns)

    def _start_request(self, gateway: bytes, session: Session, request: GenerateRequest, arrived_unix_ns: int) -> None:
        num_batch_choices = 0 if request.batch is None else request.n
        session.num_in_flight += not num_batch_choices
        if num_batch_choices:
            session.submitted_batch_s = time.monotonic()
        self._in_flight[request.request_id] = InFlight(
            gateway, session.database_id, request.attempt, request.meter, num_batch_choices, arrived_unix_ns
        )
        return self._mailbox.command(request)

    def _end_unstarted(self, gateway: bytes, request_id: str, error: EngineError | None = None) -> None:
        """End a request that the stepping thread has not seen: by an error, or as aborted."""
        usage = Usage(prompt_tokens=0, completion_tokens=0)
        final = Final(request_id, "abort" if error is None else "error", usage, error)
        return self._send_message(gateway, StepOutputs(finals=[final]))

    def _takes_over(self, earlier: InFlight, gateway: bytes, session: Session, request: GenerateRequest) -> bool:
        """Tell whether a gateway takes over a request that another gateway of the same database has lost.

        The number of the attempt must be higher, so that a gateway which learns late of its loss takes nothing back.
        Gateways without a database, which probe an engine, take over nothing.
        """
        successor = self._successors.get(request.request_id)
        latest = earlier.attempt if successor is None else successor.request.attempt
        is_of_another = gateway != earlier.gateway and bool(session.database_id)
        return is_of_another and session.database_id == earlier.database_id and request.attempt > latest

    def _succeed(self, successor: Successor) -> None:
        """Abort the earlier attempt at a request; the successor starts once that attempt has ended."""
        request_id = successor.request.request_id
        if (former := self._successors.get(request_id)) is not None:
            error = EngineError("queue_full", f"another gateway has taken over request_id {request_id}", 1.0)
            self._end_unstarted(former.gateway, request_id, error)
        self._successors[request_id] = successor
        self._mailbox.command(Abort(request_id))

    def _start_successor(self, request_id: str) -> None:
        """Start the request that has waited for the end of this one, if there is any."""
        successor = self._successors.pop(request_id, None)
        session = None if successor is None else self._sessions.get(successor.gateway)
        if successor is None or session is None:
            return None
        if self._draining:
            error = EngineError("draining", "the engine is shutting down", retry_after_s=5.0)
            return self._end_unstarted(successor.gateway, request_id, error)
        return self._start_request(successor.gateway, session, successor.request, successor.arrived_unix_ns)

    # messages of the stepping thread

    def _publish(self, event: Event) -> bool:
        """Publish an event of the stepping thread. Return True once no more events come."""
        match event:
            case StepOutputs(deltas, finals):
                self._publish_step(deltas, finals)
            case EngineStats():
                self._stats = event
            case AdapterStatus():
                for gateway in list(self._sessions):
                    self._send_message(gateway, event)
            case Drained():
                return True
        return False

    def _publish_step(self, deltas: list[Delta], finals: list[Final]) -> None:
        by_gateway: dict[bytes, StepOutputs] = {}
        for delta in deltas:
            flight = self._in_flight[delta.request_id]
            by_gateway.setdefault(flight.gateway, StepOutputs([], [])).deltas.append(delta)
        for final in finals:
            flight = self._in_flight.pop(final.request_id)
            if flight.arrived_unix_ns:
                usage = msgspec.structs.replace(final.usage, arrived_unix_ns=flight.arrived_unix_ns)
                final = msgspec.structs.replace(final, usage=usage)
            by_gateway.setdefault(flight.gateway, StepOutputs([], [])).finals.append(final)
            self._keep_usage(flight, final)
        for gateway, outputs in by_gateway.items():
            if gateway in self._sessions:
                self._send_message(gateway, outputs)
        if any(gateway not in self._sessions for gateway in by_gateway):
            self._hand_over_usage()
        for final in finals:
            self._start_successor(final.request_id)

    def _keep_usage(self, flight: InFlight, final: Final) -> None:
        session = self._sessions.get(flight.gateway)
        if session is not None:
            session.num_in_flight -= not flight.num_batch_choices
        if not flight.database_id:
            return  # a probe, which nobody bills
        record = UsageRecord(final.request_id, flight.attempt, final.finish_reason, final.usage, flight.meter)
        holder = flight.gateway if session is not None else b""
        self._usage.keep(record, flight.database_id, holder, time.monotonic())

    def _hand_over_usage(self) -> None:
        for gateway, session in list(self._sessions.items()):
            records = self._usage.adopt(session.database_id, gateway)
            if records:
                self._send_message(gateway, UnackedUsage(records))

    # the wire

    def _send_message(self, gateway: bytes, message: EngineMessage) -> None:
        session = self._sessions.get(gateway)
        frame = encode(message)
        if session is not None and session.outbox:
            session.outbox.append(frame)  # keep the order: never overtake messages that wait
        elif not self._try_send(gateway, frame) and session is not None:
            session.outbox.append(frame)
        if session is not None and len(session.outbox) > MAX_OUTBOX_MESSAGES:
            self._forget(gateway, "does not read its messages")

    def _try_send(self, gateway: bytes, frame: bytes) -> bool:
        """Send a frame. Return False when the socket is full; a gateway that is not there any more is forgotten."""
        try:
            self._socket.send_multipart((gateway, frame), zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._forget(gateway, "disconnected")
        return True

    def _flush_outboxes(self) -> None:
        for gateway, session in list(self._sessions.items()):
            while session.outbox and self._try_send(gateway, session.outbox[0]):
                session.outbox.popleft()

    def _beat(self) -> None:
        now_s = time.monotonic()
        self._usage.expire(now_s)
        stats = msgspec.structs.replace(
            self._stats,
            unacked_usage=len(self._usage),
            dropped_usage_total=self._usage.num_dropped,
            ended_prompt_tokens_total=self._usage.num_prompt_tokens,
            ended_completion_tokens_total=self._usage.num_completion_tokens,
        )
        if self._gate is not None:
            self._gate.read_again()
            for gateway, session in list(self._sessions.items()):
                if not self._gate.allows(session.key):
                    self._forget(gateway, "is of a host that may not connect any more")
        batch_credits = self._batch_credits(now_s)
        for gateway, session in list(self._sessions.items()):
            limit_s = DEAD_AFTER_S if self._has_other(gateway) else DEAD_ALONE_AFTER_S
            if session.silence.is_over(limit_s, now_s):
                self._forget(gateway, f"missed {limit_s / HEARTBEAT_INTERVAL_S:g} heartbeats")
                continue
            self._send_message(gateway, Heartbeat(session.heartbeats_sent, stats, batch_credits.get(gateway, 0)))
            session.heartbeats_sent += 1
        self._hand_over_usage()
        if self._sessions:
            self._attended_at_s = now_s
        elif self._unattended_s and now_s - self._attended_at_s > self._unattended_s and not self._drain_requested:
            log.warning("nobody has been connected for %g s: ending", self._unattended_s)
            self._drain_requested = True

    def _has_other(self, gateway: bytes) -> bool:
        """Tell whether another gateway with a database is connected.

        Such a gateway could use the room of the given one, and take its usage.
        """
        return any(session.database_id for other, session in self._sessions.items() if other != gateway)

    def _batch_credits(self, now_s: float) -> dict[bytes, int]:
        """Return the choices of the batch band that each gateway may submit, as the engine wants more than it holds.

        Gateways with batch work share them equally. Any other, which may just have got some, is offered one choice, but
        all of these together no more than half.
        """
        num_held = sum(flight.num_batch_choices for flight in self._in_flight.values())
        num_left = 0 if self._draining else max(self._stats.num_batch_wanted - num_held, 0)
        at_work = {flight.gateway for flight in self._in_flight.values() if flight.num_batch_choices}
        at_work |= {
            gateway
            for gateway, session in self._sessions.items()
            if now_s - session.submitted_batch_s < AT_WORK_HEARTBEATS * HEARTBEAT_INTERVAL_S
        }
        workers = [gateway for gateway in self._sessions if gateway in at_work]
        idle = [gateway for gateway in self._sessions if gateway not in at_work] if workers else []
        offered = random.sample(idle, min(len(idle), -(-num_left // 2)))
        num_left -= len(offered)
        credits = dict.fromkeys(offered, 1)
        workers = workers or list(self._sessions)
        for num_others, gateway in zip(reversed(range(len(workers))), workers, strict=True):
            credits[gateway] = -(-num_left // (num_others + 1))
            num_left -= credits[gateway]
        return credits

    def _forget(self, gateway: bytes, why: str) -> None:
        """End a session: abort what it runs and let other gateways take its usage."""
        session = self._sessions.pop(gateway, None)
        if session is None:
            return
        log.info("gateway %s %s", session.gateway_id, why)
        self._usage.orphan(gateway)
        self._successors = {id: each for id, each in self._successors.items() if each.gateway != gateway}
        for request_id, flight in self._in_flight.items():
            if flight.gateway == gateway:
                self._mailbox.command(Abort(request_id))
