"""Metrics, which name every tenant, have a listener of the operator's; asking for them often costs as much as once.

Probes are answered there too.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator

import httpx
import pytest

from gateway.assembly.app import server_config
from gateway.http.metrics_server import FRESH_S, MetricsText, listening_socket, metrics_app, serving_metrics
from gateway.serve.run import _metrics_fd
from gateway.serve.terminal import Terminal
from gateway.settings import BadSetting, Settings, load_settings
from tests.gateway.conftest import House
from tests.patience import PATIENCE_S


async def test_the_tenants_port_tells_nobody_about_tenants(house: House) -> None:
    async with httpx.AsyncClient(base_url=house.url, timeout=PATIENCE_S) as client:
        keys = (None, house.acme.key, house.operator_key)
        for headers in ({"authorization": f"Bearer {key}"} if key else {} for key in keys):
            reply = await client.get("/metrics", headers=headers)
            assert (reply.status_code, "tenant=" in reply.text) == (404, False)
        ready = await client.get("/health/ready")
        assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
    assert "lorikeet_http_requests_total" in house.gateway.metrics()


class CountedMetrics:
    """A metrics text that counts its renderings, and records their threads."""

    def __init__(self) -> None:
        self.num_made = 0
        self.threads: set[threading.Thread] = set()

    def __call__(self) -> bytes:
        self.num_made += 1
        self.threads.add(threading.current_thread())
        return b"made %d\n" % self.num_made


async def test_a_text_is_made_once_a_second_beside_the_loop() -> None:
    rendering, now_s = CountedMetrics(), 100.0
    text = MetricsText(rendering, clock=lambda: now_s)
    assert await asyncio.gather(*(text.get() for _ in range(500))) == [b"made 1\n"] * 500
    now_s += FRESH_S / 2
    assert await text.get() == b"made 1\n"
    now_s += FRESH_S / 2
    assert await text.get() == b"made 2\n"
    assert threading.current_thread() not in rendering.threads


@contextlib.asynccontextmanager
async def metrics_client(rendering: CountedMetrics) -> AsyncIterator[httpx.AsyncClient]:
    listener = listening_socket(("127.0.0.1", 0))
    assert listener is not None
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    config = server_config(Settings(), metrics_app(MetricsText(rendering)))
    async with serving_metrics(config, listener), httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
        yield client


async def test_the_listener_knows_metrics_and_what_it_is_given_alone() -> None:
    async with metrics_client(CountedMetrics()) as client:
        reply = await client.get("/metrics")
        assert (reply.status_code, reply.text) == (200, "made 1\n")
        assert reply.headers["content-type"].startswith("text/plain; version=")
        assert (await client.head("/metrics")).headers["content-length"] == "7"
        assert {(await client.get(path)).status_code for path in ("/", "/v1/models", "/health/ready")} == {404}
        assert (await client.post("/metrics")).status_code == 404
        url = client.base_url
    async with httpx.AsyncClient(timeout=PATIENCE_S) as late:
        with pytest.raises(httpx.ConnectError):
            await late.get(url)


async def test_metrics_that_are_off_or_have_no_port_keep_nothing_from_starting() -> None:
    assert listening_socket(None) is None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert listening_socket(taken.getsockname()) is None
    async with serving_metrics(server_config(Settings(), metrics_app(MetricsText(bytes))), None):
        pass


def test_serve_opens_one_port_for_all_its_gateways_or_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.ExitStack() as stack:
        taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert _metrics_fd(Settings(metrics_listen="off"), Terminal(), stack) is None
        assert _metrics_fd(Settings(metrics_listen=address), Terminal(), stack) is None
        told = capsys.readouterr()
        assert "LORIKEET_METRICS_LISTEN" in told.out + told.err
        descriptor = _metrics_fd(Settings(metrics_listen="127.0.0.1:0"), Terminal(), stack)
        assert descriptor is not None
        with socket.socket(fileno=descriptor) as listener:
            socket.create_connection(listener.getsockname(), timeout=PATIENCE_S).close()
            listener.detach()


@pytest.mark.parametrize("text", ["9464", ":9464", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", "no"])
def test_a_malformed_address_of_the_metrics_listener_stops_the_start(text: str) -> None:
    with pytest.raises(BadSetting, match="LORIKEET_METRICS_LISTEN"):
        load_settings({"LORIKEET_METRICS_LISTEN": text})


def test_addresses_of_the_metrics_listener_are_parsed() -> None:
    for text, address in (("[::1]:1", ("::1", 1)), ("0.0.0.0:0", ("0.0.0.0", 0)), ("off", None)):
        assert load_settings({"LORIKEET_METRICS_LISTEN": text}).metrics_address == address
    assert (Settings().metrics_address or ("",))[0] == "127.0.0.1"
