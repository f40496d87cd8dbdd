"""A gateway that only sends and receives messages of the protocol over a real socket; knows nothing of requests."""

from __future__ import annotations

import time

import zmq

from engine.protocol import (
    PROTOCOL_VERSION,
    EngineMessage,
    Final,
    GatewayMessage,
    Hello,
    StepOutputs,
    decode_from_engine,
    encode,
)
from tests.patience import PATIENCE_S


class Gateway:
    """A DEALER socket that sends only messages of the test, without heartbeats."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, *, connect: bool = True) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        if connect:
            self.socket.connect(endpoint)

    def send(self, message: GatewayMessage) -> None:
        self.socket.send(encode(message))

    def receive_any(self, timeout_s: float) -> EngineMessage | None:
        """Return the next message, or None where none comes in time."""
        return decode_from_engine(self.socket.recv()) if self.socket.poll(timeout_s * 1e3) else None

    def receive(self, kind: type[EngineMessage], timeout_s: float = PATIENCE_S) -> EngineMessage:
        """Return the next message of a kind; messages of other kinds are dropped.

        Raises TimeoutError: when no such message comes in time.
        """
        until = time.monotonic() + timeout_s
        while (left := until - time.monotonic()) > 0:
            message = self.receive_any(left)
            if isinstance(message, kind):
                return message
        raise TimeoutError(kind.__name__)

    def hello(self, database_id: str = "db", version: int = PROTOCOL_VERSION) -> None:
        self.send(Hello(version, "gateway", database_id))

    def final(self, request_id: str) -> Final:
        while True:
            outputs = self.receive(StepOutputs)
            for final in outputs.finals:
                if final.request_id == request_id:
                    return final
