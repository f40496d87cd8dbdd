"""An engine on TCP speaks with the hosts of its list alone, and nobody on the way can read the messages."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from engine.curve import ALLOWED_NAME, SECRET_NAME, BadKey, Gate, KeyPair, Peer, connect_as, new_secret, read_keys
from engine.fake import FakeCore
from engine.mailbox import Mailbox
from engine.protocol import GenerateRequest, Goodbye, Heartbeat, SamplingParams, Submit, Welcome, encode
from engine.server import EngineServer
from tests.engine.gateway import Gateway
from tests.engine.test_server import LIMITS
from tests.patience import PATIENCE_S

REFUSED_S = 1.0
"""Seconds to wait for an answer to a stranger, which must not come."""
TENANT = "tenant-whose-name-nobody-reads"
READ_BYTES = 1 << 16


def new_keys() -> KeyPair:
    secret = new_secret()
    return KeyPair(zmq.curve_public(secret.encode()).decode(), secret)


class GuardedEngine:
    """An engine on TCP that accepts only the public keys given to `allow`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.gateways: list[Gateway] = []
        (folder / SECRET_NAME).write_text(new_secret())
        self.allow()
        self.key = read_keys(folder).public
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.mailbox = Mailbox()
        self.server = EngineServer(
            f"tcp://127.0.0.1:{self.port}", "model-digest", LIMITS, self.mailbox, link_dir=str(folder)
        )
        self.core = threading.Thread(target=FakeCore(self.mailbox, 200).run, daemon=True)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.core.start()
        self.thread.start()

    def allow(self, *keys: KeyPair) -> None:
        """Replace the list of keys as a whole, as an agent does."""
        written = self.folder / "new"
        written.write_text("".join(f"{each.public}\n" for each in keys))
        written.replace(self.folder / ALLOWED_NAME)

    def gateway(self, own: KeyPair | None, port: int | None = None, server: str | None = None) -> Gateway:
        made = Gateway(self.context, "", connect=False)
        if own is not None:
            connect_as(made.socket, Peer(own, server or self.key))
        made.socket.connect(f"tcp://127.0.0.1:{port or self.port}")
        self.gateways.append(made)
        return made

    def close(self) -> None:
        for each in self.gateways:
            with contextlib.suppress(zmq.Again):  # strangers have no connection
                each.socket.send(encode(Goodbye()), zmq.NOBLOCK)
        self.server.drain()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        self.core.join(PATIENCE_S)
        self.mailbox.close()
        for each in self.gateways:
            each.socket.close()
        self.context.term()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[GuardedEngine]:
    engine = GuardedEngine(tmp_path)
    yield engine
    engine.close()


def request(name: str) -> GenerateRequest:
    return GenerateRequest(name, [10, 11, 12], SamplingParams(4), tenant=TENANT, meter=b"tag")


def test_a_host_of_the_list_is_served_and_strangers_get_no_answer(engine: GuardedEngine) -> None:
    known, unknown = new_keys(), new_keys()
    engine.allow(known)
    friend = engine.gateway(known)
    strangers = [engine.gateway(unknown), engine.gateway(None), engine.gateway(known, server=new_keys().public)]
    for each in (friend, *strangers):
        each.hello()
    friend.receive(Welcome)
    friend.send(Submit(request("a")))
    assert friend.final("a").usage.completion_tokens == 4
    time.sleep(REFUSED_S)
    assert [each.receive_any(0.0) for each in strangers] == [None] * 3


def test_a_host_that_joins_later_is_let_in_and_one_that_is_removed_is_cut_off(engine: GuardedEngine) -> None:
    first, second = new_keys(), new_keys()
    engine.allow(first)
    leaving = engine.gateway(first)
    leaving.hello()
    leaving.receive(Welcome)
    engine.allow(second)
    coming = engine.gateway(second)
    coming.hello()
    coming.receive(Welcome)
    while leaving.receive_any(REFUSED_S) is not None:  # heartbeats end
        leaving.send(Heartbeat(0))
    leaving.send(Submit(request("late")))
    assert leaving.receive_any(REFUSED_S) is None
    coming.send(Submit(request("b")))
    assert coming.final("b").error is None


def test_nothing_that_is_said_can_be_read_on_the_way(engine: GuardedEngine) -> None:
    known = new_keys()
    engine.allow(known)
    said = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        relay = threading.Thread(target=_relay, args=(listening, engine.port, said), daemon=True)
        relay.start()
        gateway = engine.gateway(known, port=listening.getsockname()[1])
        gateway.hello()
        gateway.receive(Welcome)
        gateway.send(Submit(request("a")))
        gateway.final("a")
        gateway.socket.close()
        engine.gateways.clear()
        relay.join(PATIENCE_S)
    assert not relay.is_alive()
    assert len(said) > 1000
    for word in (TENANT, "model-digest", known.public, known.secret, "gateway"):
        assert word.encode() not in said
    plain = msg_of(TENANT)
    assert TENANT.encode() in plain  # the search finds what is not encrypted


def msg_of(tenant: str) -> bytes:
    return encode(Submit(GenerateRequest("a", [1], SamplingParams(1), tenant=tenant)))


def _relay(listening: socket.socket, port: int, said: bytearray) -> None:
    """Forward the bytes of one connection, and append them to `said`."""
    near, _ = listening.accept()
    far = socket.create_connection(("127.0.0.1", port))

    def passing(source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(READ_BYTES):
            said.extend(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)

    back = threading.Thread(target=passing, args=(far, near), daemon=True)
    back.start()
    with near, far:
        passing(near, far)
        back.join()


def test_a_folder_without_keys_or_list_is_refused_by_its_name(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with pytest.raises(BadKey, match=f"{tmp_path}/{SECRET_NAME} cannot be read"):
        Gate(context, tmp_path)
    (tmp_path / SECRET_NAME).write_text("x" * 39)
    with pytest.raises(BadKey, match="holds no key of 40 characters"):
        Gate(context, tmp_path)
    (tmp_path / SECRET_NAME).write_text(new_secret())
    with pytest.raises(BadKey, match=f"{tmp_path}/{ALLOWED_NAME} cannot be read"):
        Gate(context, tmp_path)
    context.term()


def test_a_list_that_is_damaged_lets_in_its_whole_lines(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    known = new_keys()
    (tmp_path / SECRET_NAME).write_text(new_secret())
    (tmp_path / ALLOWED_NAME).write_text(f"{known.public}\nhalf a line")
    gate = Gate(context, tmp_path)
    assert gate.allows(known.public) and not gate.allows("half") and not gate.allows("")
    (tmp_path / ALLOWED_NAME).unlink()
    assert gate.read_again() is False and gate.allows(known.public)
    (tmp_path / ALLOWED_NAME).write_text("")
    os.utime(tmp_path / ALLOWED_NAME, ns=(time.time_ns(), time.time_ns() + 1))
    assert gate.read_again() is True and not gate.allows(known.public)
    gate.close()
    context.term()
