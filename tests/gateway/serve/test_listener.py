"""The requests by which `serve`, over a real socket, learns about engines and pools of its gateway."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from gateway.serve.listener import engines_in_words, need_not_wait


@contextmanager
def answering(status: int, body: bytes, pools: bytes = b"{}") -> Iterator[str]:
    """Give the base URL of a server that answers requests with the key `secret` about engines and pools."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            of_engines = self.path == "/v1/organization/engines"
            is_known = of_engines or self.path.partition("?")[0] == "/v1/organization/pools"
            self.send_response(status if is_known and self.headers["authorization"] == "Bearer secret" else 401)
            self.end_headers()
            self.wfile.write(body if of_engines else pools)

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


def pool(num_replicas: int, state: str) -> str:
    return f'{{"name": "tiny", "num_replicas": {num_replicas}, "state": "{state}"}}'


@pytest.mark.parametrize(
    ("engines", "pools", "expected"),
    [
        ('{"model": "tiny", "state": "ready", "device": "", "dtype": ""}', pool(1, "ready"), True),
        ('{"model": "other", "state": "ready", "device": "", "dtype": ""}', pool(1, "starting"), False),
        ('{"model": "tiny", "state": "unreachable", "device": "", "dtype": ""}', pool(1, "scaling"), False),
        ("", pool(1, "starting"), False),
        ("", pool(0, "stopped"), True),
        ("", pool(1, "failed"), True),
        ("", "", True),
    ],
)
def test_a_model_is_waited_for_while_an_engine_of_it_may_come(engines: str, pools: str, expected: bool) -> None:
    with answering(200, f'{{"data": [{engines}]}}'.encode(), f'{{"data": [{pools}]}}'.encode()) as base_url:
        assert need_not_wait(base_url, "secret", "tiny") is expected
        assert not need_not_wait(base_url, "another", "tiny")
    assert not need_not_wait(base_url, "secret", "tiny"), "nobody listens any more"
