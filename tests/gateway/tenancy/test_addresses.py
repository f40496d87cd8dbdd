"""A client's address is one that it cannot choose: that of its connection, or the one that a trusted proxy names."""

from __future__ import annotations

import pytest

from gateway.domain.tenancy.addresses import client_address, client_of, contains, parse_network

PROXIES = [parse_network("10.0.0.0/8"), parse_network("::1")]


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "client"),
    [
        ("203.0.113.9", ["198.51.100.1"], "203.0.113.9"),  # a stranger says whatever it likes
        ("10.1.1.1", [], "10.1.1.1"),
        ("10.1.1.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.1.1.1", ["1.2.3.4, 198.51.100.1"], "198.51.100.1"),  # the client made up what stands before
        ("10.1.1.1", ["1.2.3.4, 198.51.100.1, 10.2.2.2"], "198.51.100.1"),
        ("10.1.1.1", ["1.2.3.4", "198.51.100.1", "10.2.2.2"], "198.51.100.1"),
        ("10.1.1.1", ["10.3.3.3, 10.2.2.2"], "10.3.3.3"),
        ("10.1.1.1", ["1.2.3.4, nonsense"], "10.1.1.1"),
        ("10.1.1.1", ["1.2.3.4, nonsense, 10.2.2.2"], "10.2.2.2"),
        ("::1", ["2001:db8::1"], "2001:db8::1"),
        ("::ffff:10.1.1.1", ["198.51.100.1"], "198.51.100.1"),
        ("", ["198.51.100.1"], ""),
    ],
)
def test_only_trusted_proxies_are_believed(peer: str, forwarded_for: list[str], client: str) -> None:
    assert client_address(peer, forwarded_for, PROXIES) == client
    assert client_address(peer, forwarded_for, []) == peer


def test_networks_hold_addresses_of_their_own_kind() -> None:
    networks = [parse_network("192.0.2.0/24"), parse_network("2001:db8::/32")]
    inside = ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::5"]
    outside = ["192.0.3.1", "2001:db9::5", "::", "", "localhost", "192.0.2.1/32", "192.0.2.1\n", "0300.0.2.1"]
    assert [contains(networks, address) for address in inside + outside] == [True] * 3 + [False] * 8


@pytest.mark.parametrize("text", ["10.0.0.1/8", "10.0.0.0/33", "", "*", "10.0.0.0/8/8"])
def test_a_malformed_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_network(text)


def test_one_subscriber_of_ipv6_is_one_client() -> None:
    assert client_of("2001:db8:1:2:3::4") == client_of("2001:db8:1:2:ffff::1") != client_of("2001:db8:1:3::4")
    assert client_of("192.0.2.1") != client_of("192.0.2.2")
