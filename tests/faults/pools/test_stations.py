"""Stations are laid and cut without a change of the machine's own interfaces, which a browser would notice."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator

import pytest

from tests.faults.pools.stations import HUB, CannotLay, ip, laid_stations
from tests.installation.networks import inside

LINKS_AND_ADDRESSES = 0x1 | 0x10 | 0x100
"""RTMGRP_LINK, RTMGRP_IPV4_IFADDR and RTMGRP_IPV6_IFADDR of Linux's rtnetlink.h, which Chromium listens to."""


@pytest.fixture
def machine() -> Iterator[str]:
    """Give a network that stands for the machine's own, whose interfaces other programs may change."""
    network = f"lorikeet-{secrets.token_hex(3)}-machine"
    try:
        ip("netns", "add", network)
        ip("-n", network, "link", "set", "lo", "up")
    except CannotLay as reason:
        pytest.skip(f"no networks of its own: {reason}")
    yield network
    ip("netns", "del", network)


def _num_changes(changes: socket.socket) -> int:
    """Return the number of messages that have come."""
    count = 0
    try:
        while changes.recv(65536, socket.MSG_DONTWAIT):
            count += 1
    except BlockingIOError:
        return count
    raise AssertionError("netlink sockets have no end")


def test_stations_change_nothing_where_the_tests_run_and_reach_each_other(machine: str) -> None:
    with inside(machine), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as changes:
        changes.bind((0, LINKS_AND_ADDRESSES))
        with (
            laid_stations("a", "b") as stations,
            inside(stations.network("a")),
            socket.create_server((stations.address("a"), 0)) as server,
        ):
            address = server.getsockname()
            for network in (stations.network(HUB), stations.network("b")):
                with inside(network):
                    socket.create_connection(address, 5.0).close()
            with stations.cut("b", "a"), inside(stations.network("b")), pytest.raises(TimeoutError):
                socket.create_connection(address, 0.2)
        assert _num_changes(changes) == 0
        ip("link", "add", "name", "seen", "type", "bridge")
        assert _num_changes(changes) > 0
