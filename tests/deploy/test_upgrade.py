"""Gateways are replaced one after the other, under streams and requests, and no client notices.

This holds behind each balancer of `deploy/proxy`, and on a socket that systemd holds. `UPGRADE_SECONDS`,
`UPGRADE_STREAMS` and `UPGRADE_REQUESTS_PER_S` make a smaller run.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.deploy.balancers import FILES, Balancer, program
from tests.deploy.client import Client, Outcome
from tests.deploy.gateways import Activated, OwnPort
from tests.deploy.load import Size, check_whole, load
from tests.faults.conservation import check_conservation
from tests.faults.site import Site
from tests.installation.waiting import wait_until

SECONDS = float(os.environ.get("UPGRADE_SECONDS", "300"))
NUM_STREAMS = int(os.environ.get("UPGRADE_STREAMS", "50"))
REQUESTS_PER_S = float(os.environ.get("UPGRADE_REQUESTS_PER_S", "200"))

TOKENS_PER_S = 20
SIZE = Size(NUM_STREAMS, REQUESTS_PER_S, (60, 400))

NOTICED_S = 3.0
"""Seconds to wait after a gateway is ready before the next restart: longer than balancers take to notice it."""


@contextmanager
def site_of(folder: Path) -> Iterator[Site]:
    """Give a site with a database and an engine, and without gateways."""
    folder.mkdir(mode=0o711)
    site = Site(folder, num_gateways=0, tokens_per_s=TOKENS_PER_S)
    # `lorikeet gateway` takes a folder with weights alone for a model: these are none.
    (Path(site.settings.model) / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    try:
        site.start()
        yield site
    finally:
        site.close()


def under_load(site: Site, client: Client, restart_next: Callable[[], None], seconds: float = SECONDS) -> list[Outcome]:
    """Restart gateways in turns under load, for a number of seconds; return the outcomes of requests."""
    stop, num_restarts = threading.Event(), 0
    # The clients have a thread of their own: a database ends with the thread that started it.
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(load, client, site.key.secret, stop, SIZE)
        try:
            ends_s = time.monotonic() + seconds
            while time.monotonic() < ends_s and not running.done():
                restart_next()
                num_restarts += 1
                time.sleep(NOTICED_S)
        finally:
            stop.set()
        outcomes = running.result()
    print(f"{len(outcomes)} requests, {client.num_opened} connections, {num_restarts} restarts, ", end="")
    return outcomes


def check(site: Site, outcomes: list[Outcome]) -> None:
    """Check, once the gateways have ended, that every request was answered whole and is billed once."""
    check_whole(outcomes)
    for each in outcomes:
        if each.wanted >= SIZE.stream_tokens[0]:
            assert each.spread_s > each.wanted / TOKENS_PER_S / 2, "a balancer has kept events back"
    site.seen = [each.seen for each in outcomes]
    site.settle()
    rows = check_conservation(site)
    assert len(rows) == len(outcomes)
    for each in outcomes:
        assert rows[each.seen.request_id].completion_tokens == each.wanted, each


@pytest.mark.parametrize("name", FILES)
def test_gateways_are_replaced_behind_a_balancer_and_no_client_notices(
    name: str, open_folder: Path, full: bool
) -> None:
    if not full:
        pytest.skip("make long-upgrade")
    if program(name) is None:
        pytest.skip(f"{name} is not installed")
    with site_of(open_folder / name) as site:
        gateways = [OwnPort(site.settings, site.postgres.dsn, number) for number in range(2)]
        balancer = Balancer(name, open_folder / name / "balancer", [gateway.port for gateway in gateways])
        try:
            for gateway in gateways:
                gateway.start()
            for gateway in gateways:
                gateway.wait_ready()
            balancer.start()
            wait_until(lambda: answers(balancer), balancer.output)
            turns = iter(gateways * 1000)
            outcomes = under_load(site, Client(balancer.port, tls=True), lambda: next(turns).restart())
            balancer.check()
            assert [gateway.terminate() for gateway in gateways] == [0, 0]
        finally:
            balancer.kill()
            for gateway in gateways:
                gateway.close()
        check(site, outcomes)


@pytest.mark.parametrize("num_gateways", [2, 1])
def test_gateways_are_replaced_on_a_socket_of_systemd_and_no_client_notices(
    num_gateways: int, open_folder: Path, full: bool
) -> None:
    if not full:
        pytest.skip("make long-upgrade")
    if shutil.which("systemd-socket-activate") is None:
        pytest.skip("systemd-socket-activate is not installed")
    with site_of(open_folder / f"activated-{num_gateways}") as site:
        gateways = Activated(site.settings, site.postgres.dsn, num_gateways, SIZE.lame_duck_s(TOKENS_PER_S))
        try:
            gateways.start()
            turns = iter(list(range(num_gateways)) * 1000)
            outcomes = under_load(site, Client(gateways.port, tls=False), lambda: gateways.restart(next(turns)))
            gateways.terminate()
        finally:
            gateways.close()
        check(site, outcomes)


def answers(balancer: Balancer) -> bool:
    """Return whether a balancer has found a ready gateway.

    Raises AssertionError: when the balancer has ended.
    """
    balancer.check()
    try:
        url = f"https://127.0.0.1:{balancer.port}/health/ready"
        return httpx.get(url, verify=False, timeout=5).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
