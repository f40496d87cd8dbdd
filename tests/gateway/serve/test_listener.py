"""What `serve` asks its gateway once it is ready, over a real socket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from gateway.serve.listener import engines_in_words


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """Serve one answer to whatever is asked with the key `secret`; yields the base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = self.headers["authorization"] == "Bearer secret" and self.path == "/v1/organization/engines"
            self.send_response(status if is_known else 401)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, b'{"data": [{"device": "", "dtype": ""}, {"device": "cpu", "dtype": "bfloat16"}]}', "bfloat16 on cpu"),
        (200, b'{"data": []}', ""),
        (200, b"not JSON", ""),
        (500, b'{"data": [{"device": "cpu", "dtype": "bfloat16"}]}', ""),
    ],
)
def test_the_first_engine_that_says_it_is_told(status: int, body: bytes, words: str) -> None:
    with answering(status, body) as base_url:
        assert engines_in_words(base_url, "secret") == words
        assert engines_in_words(base_url, "another") == ""
    assert engines_in_words(base_url, "secret") == "", "nobody listens any more"
