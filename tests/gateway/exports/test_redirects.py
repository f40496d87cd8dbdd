"""A bucket's server cannot redirect a delivery to another server, neither by its answers nor by a change of its DNS
name.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme
from obstore.exceptions import BaseError

from gateway.exports.destination import S3Destination
from gateway.exports.object_store import ObjectStore
from tests.gateway.exports.s3_server import ACCESS_KEY, SECRET

NAME, INSIDE = "bucket.test", "inside.test"
"""Names that no resolver knows."""


class Server:
    """A TLS server that answers every request with a redirect, or with 200.

    asked: the requests, in order.
    """

    def __init__(self, certificate: trustme.LeafCert, redirect_to: str = "") -> None:
        self.asked: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                server.asked.append(f"{self.command} {self.path}")
                self.send_response(307 if redirect_to else 200)
                if redirect_to:
                    self.send_header("location", redirect_to)
                self.send_header("content-length", "0")
                self.send_header("etag", '"x"')
                self.end_headers()

            do_GET = do_PUT = do_POST = do_DELETE = answer

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(context)
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self.port = self._http.server_port
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @contextmanager
    def running(self) -> Iterator[Server]:
        self._thread.start()
        try:
            yield self
        finally:
            self._http.shutdown()
            self._thread.join()
            self._http.server_close()


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.LeafCert:
    """Return a certificate for both names and the loopback, of an authority that this process trusts."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    return authority.issue_cert(NAME, INSIDE, "127.0.0.1")


def bucket(port: int) -> ObjectStore:
    destination = S3Destination(
        bucket="books", access_key_id=ACCESS_KEY, secret_access_key=SECRET, endpoint=f"https://{NAME}:{port}"
    )
    return ObjectStore(destination, address="127.0.0.1")


async def one_chunk(chunk: bytes) -> AsyncIterator[bytes]:
    yield chunk


async def test_the_judged_address_is_used_whatever_the_name_means(certificate: trustme.LeafCert) -> None:
    with Server(certificate).running() as server:
        await bucket(server.port).remove("old")
        assert server.asked == ["DELETE /books/old"]


@pytest.mark.parametrize("host", [INSIDE, "127.0.0.1"])
async def test_a_redirect_reaches_nobody(certificate: trustme.LeafCert, host: str) -> None:
    with Server(certificate).running() as inside:
        target = f"https://{host}:{inside.port}/secrets"
        with Server(certificate, redirect_to=target).running() as server:
            for request in (bucket(server.port).remove("old"), bucket(server.port).put("new", one_chunk(b"x"))):
                with pytest.raises(BaseError):
                    await request
            assert server.asked != []
        assert inside.asked == []
