"""The origin of a request: the client's address, also behind proxies that are trusted, and lists of networks.

A connection's own address cannot be chosen by the client. `X-Forwarded-For` can: it counts from trusted proxies only.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address

IPV6_SITE_BITS = 64
"""The prefix length of a subscriber's IPv6 network (RFC 6177): the addresses within count as one client."""


@functools.lru_cache(maxsize=4096)
def parse_address(text: str) -> Address | None:
    """Return the address that a text is, or None.

    An IPv4 address within IPv6 (`::ffff:1.2.3.4`) is returned as IPv4.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def parse_network(text: str) -> Network:
    """Parse a network such as `10.0.0.0/8`, or one address.

    Raises ValueError: when the text is neither, or bits beyond the prefix are set.
    """
    return ip_network(text.strip(), strict=True)


def contains(networks: Iterable[Network], text: str) -> bool:
    """Tell whether an address lies in one of the networks; a text that is not an address lies in none."""
    address = parse_address(text)
    return address is not None and any(address in network for network in networks)


def is_within(inner: Iterable[Network], outer: Iterable[Network]) -> bool:
    """Tell whether each of the inner networks is a part of one of the outer ones."""
    return all(any(_is_part(small, large) for large in outer) for small in inner)


def _is_part(small: Network, large: Network) -> bool:
    if isinstance(small, IPv4Network):
        return isinstance(large, IPv4Network) and small.subnet_of(large)
    return isinstance(large, IPv6Network) and small.subnet_of(large)


def client_of(address: str) -> str:
    """Return the network whose addresses count as one client in limits: an IPv4 address itself, or an IPv6 /64."""
    parsed = parse_address(address)
    if isinstance(parsed, IPv6Address):
        return str(ip_network((parsed, IPV6_SITE_BITS), strict=False))
    return address


def client_address(peer: str, forwarded_for: Sequence[str], trusted: Sequence[Network]) -> str:
    """Return the client's address. peer: the connection's; forwarded_for: the values of X-Forwarded-For in their order.

    Each proxy appends the address that it was called from, so the list is read from its end: the first address that
    is not a trusted proxy's is the client's, and the client may have made up any before it.
    """
    if not trusted or not contains(trusted, peer):
        return peer
    client = peer
    for hop in reversed([part.strip() for value in forwarded_for for part in value.split(",")]):
        address = parse_address(hop)
        if address is None:
            break
        client = str(address)
        if not contains(trusted, client):
            break
    return client
