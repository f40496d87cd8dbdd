"""The client of upgrades tells whole replies from those that were cut, and never sends a request twice."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import trustme

from tests.deploy.client import Client, Exchange, Outcome
from tests.deploy.load import MAX_SHORT, Size, load

HEAD = b"HTTP/1.1 200 OK\r\nx-request-id: req_1\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices": [{"text": "ab"}]}\n\n'
DONE = b"data: [DONE]\n\n"
BODY = b'{"choices": [{"text": "ab"}], "usage": {"completion_tokens": 2}}'
WHOLE = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


STREAM = CHUNKED + chunk(EVENT) + chunk(EVENT) + chunk(DONE) + chunk(b"")


class Server:
    """A server that sends the same reply to every request, in pieces, and counts connections and requests."""

    def __init__(self, listener: socket.socket, pieces: Sequence[bytes], *, closes: bool, tls: bool) -> None:
        self.num_connections = self.num_requests = 0
        self._listener, self._pieces, self._closes = listener, pieces, closes
        self._tls = trustme.CA().issue_cert("127.0.0.1") if tls else None
        self.port = int(listener.getsockname()[1])

    def run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.num_connections += 1
            if self._tls is not None:
                connection = _with_tls(connection, self._tls)
            with connection:
                while connection.recv(1000):
                    self.num_requests += 1
                    for piece in self._pieces:
                        connection.sendall(piece)
                    if self._closes:
                        break


def _with_tls(connection: socket.socket, certificate: trustme.LeafCert) -> socket.socket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context.wrap_socket(connection, server_side=True)


@contextmanager
def serving(*pieces: bytes, closes: bool = False, tls: bool = False) -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(listener, pieces, closes=closes, tls=tls)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        yield server
        listener.shutdown(socket.SHUT_RDWR)


def ask(client: Client, wanted: int) -> Outcome:
    client.begin(Exchange(b"POST / HTTP/1.1\r\n\r\n", wanted))
    while client.num_running:
        client.advance(1.0)
    return client.ended[-1].outcome()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(("reply", "wanted"), [(STREAM, 4), (WHOLE, 2)], ids=["stream", "whole"])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_whole_replies_are_counted_to_the_token_over_one_connection(
    reply: bytes, wanted: int, size: int, tls: bool
) -> None:
    pieces = [reply[at : at + size] for at in range(0, len(reply), size)]
    with serving(*pieces, tls=tls) as server:
        client = Client(server.port, tls=tls)
        outcomes = [ask(client, wanted) for _ in range(3)]
        assert all(each.is_whole for each in outcomes), outcomes
        assert not ask(client, wanted + 1).is_whole
        assert (server.num_connections, server.num_requests, client.num_opened) == (1, 4, 1)
        client.close()


@pytest.mark.parametrize(
    "reply",
    [
        STREAM[:-1],
        STREAM.replace(chunk(DONE), b""),
        CHUNKED + chunk(EVENT),
        WHOLE[:-1],
        WHOLE + b"x",
        HEAD + b"\r\n" + BODY,
        WHOLE.replace(b"200 OK", b"503 NO"),
        b"",
    ],
    ids=["last byte", "no end", "one event", "body cut", "more than said", "no length", "refused", "nothing"],
)
def test_a_reply_that_is_not_whole_fails_and_is_not_asked_for_again(reply: bytes) -> None:
    with serving(*([reply] if reply else []), closes=True) as server:
        client = Client(server.port, tls=False)
        outcome = ask(client, 2 if b"content-length" in reply else 4)
        assert not outcome.is_whole and (outcome.error or not outcome.seen.has_ended), outcome
        assert server.num_requests == 1
        client.close()


def test_a_connection_that_was_closed_while_idle_is_replaced() -> None:
    with serving(WHOLE, closes=True) as server:
        client = Client(server.port, tls=False)
        for _ in range(3):
            assert ask(client, 2).is_whole
            while client._idle and client._idle[0].is_open():
                pass
        assert client.num_opened == server.num_requests == 3
        client.close()


def test_a_port_without_a_server_is_an_error_of_the_request() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    client = Client(port, tls=False)
    assert "no connection" in ask(client, 2).error
    client.close()


def test_a_load_that_is_not_answered_takes_no_more_than_its_connections() -> None:
    stop, accepted = threading.Event(), list[socket.socket]()
    with socket.create_server(("127.0.0.1", 0), backlog=2 * MAX_SHORT) as listener, ThreadPoolExecutor(1) as thread:
        client = Client(listener.getsockname()[1], tls=False)
        running = thread.submit(load, client, "sk-secret", stop, Size(0, 1e6, (60, 400)))
        for _ in range(MAX_SHORT):
            accepted.append(listener.accept()[0])
        stop.set()
        listener.close()
        for connection in accepted:
            connection.close()
        assert len(running.result()) == client.num_opened == MAX_SHORT
