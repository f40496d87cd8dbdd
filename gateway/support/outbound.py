"""The addresses that this process may connect to for URLs from others: webhooks, object stores, sources of adapters.

A name is looked up once, each of its addresses is checked, and the connection goes to a checked address, whatever the
name means a moment later (DNS rebinding). TLS is still verified for the name. Knows nothing of the transferred data.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import certifi
import httpx

from gateway.support.names import Names

LookUp = Callable[[str, int], Awaitable[Sequence[str]]]
"""A function that returns the addresses of a host name, for a port.

Raises OSError or UnicodeError: when the name has no address.
"""

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")  # RFC 4291, section 2.4: all that is routed on the internet
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: an IPv4 address is in the last 32 bits

_METADATA = tuple(
    ipaddress.ip_network(text)
    for text in (
        "169.254.0.0/16",  # link-local: AWS, Azure, Google and most others
        "fe80::/10",
        "fd00:ec2::/32",  # AWS
        "100.100.100.200/32",  # Alibaba
        "168.63.129.16/32",  # Azure's host, at a public address
        "192.0.0.192/32",  # Oracle
    )
)
"""Networks of the clouds' metadata services, which answer questions about the machine itself, its credentials among
them."""

_METADATA_NAMES = frozenset({"metadata", "metadata.google.internal", "metadata.goog", "instance-data"})
"""Names of the clouds' metadata services within their networks."""


class NotPublic(Exception):
    """The error for a URL that leads to an address that is not public; the message gives no details."""


class Guard:
    """The check of the addresses that a URL leads to.

    is_allowed: judges each address of the URL's host name. look_up: None: the system's resolver is asked, in threads of
    this guard's own.
    """

    def __init__(self, is_allowed: Callable[[str], bool], look_up: LookUp | None = None) -> None:
        self._is_allowed = is_allowed
        self._look_up = look_up or Names().look_up

    @classmethod
    def of(cls, *, allow_private: bool) -> Guard:
        """Return a guard against private addresses.

        allow_private: True: addresses that the internet cannot reach, such as the loopback, are allowed as well;
        metadata services never are.
        """
        return cls(_is_no_metadata if allow_private else is_public)

    async def address_of(self, url: httpx.URL) -> str:
        """Return an allowed address of a URL's host.

        Raises NotPublic: when an address of the host is not allowed.
        Raises OSError or UnicodeError: when the host has no address.
        """
        if url.scheme not in ("http", "https") or not url.host:
            raise NotPublic("the URL does not begin with http:// or https://")
        port = url.port or (443 if url.scheme == "https" else 80)
        addresses = await self._look_up(url.raw_host.decode(), port)
        if not addresses or not all(map(self._is_allowed, addresses)):
            raise NotPublic(f"the address of {url.host} is not a public address")  # clients need not know which
        return addresses[0]


def new_client(timeout: httpx.Timeout | float, tls: ssl.SSLContext | None = None) -> httpx.AsyncClient:
    """Return a client for `send_to`, with the authorities that this machine trusts if tls is None.

    It uses no proxy of the environment, follows no redirect to where nobody checked the address, and keeps no
    connection: one that proved to be a host's would be used for another host at the same address.
    """
    limits = httpx.Limits(max_keepalive_connections=0)
    return httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False, verify=tls or trusted_authorities())


def trusted_authorities() -> ssl.SSLContext:
    """Return the authorities of the system, or of SSL_CERT_FILE where that is set, and those that come with httpx.

    The system of a small container may have no authorities; a company's own are in the system alone.
    """
    return _authorities_of(os.environ.get("SSL_CERT_FILE"))


@functools.cache
def _authorities_of(_cert_file: str | None) -> ssl.SSLContext:
    """Read the trusted authorities, once for each value of SSL_CERT_FILE, since that takes tens of milliseconds.

    _cert_file: the value of SSL_CERT_FILE, by which the result is cached; None: it is not set.
    """
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


@asynccontextmanager
async def send_to(
    client: httpx.AsyncClient,
    address: str,
    method: str,
    url: httpx.URL,
    *,
    headers: Mapping[str, str],
    content: bytes | None = None,
) -> AsyncIterator[httpx.Response]:
    """Send a request to the server at an address; give the response, with its body unread.

    With TLS, the server has to prove that it is the URL's host.

    content: the body; None without one.

    Raises httpx.HTTPError: when the server does not answer or the connection is lost.
    """
    async with client.stream(
        method,
        url.copy_with(host=address),
        content=content,
        headers={"host": url.netloc.decode(), "accept-encoding": "identity", **headers},
        extensions={"sni_hostname": url.raw_host.decode()},
    ) as response:
        yield response


def names_private_address(url: httpx.URL) -> bool:
    """Tell whether the host is an address or a name that only this machine or network has.

    The address may be in any notation.
    """
    host = url.host.rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    address = _written_address(host)
    return address is not None and not is_public(address)


def names_metadata_service(url: httpx.URL) -> bool:
    """Tell whether the host is an address or a name under which a cloud answers about the machine itself.

    The address may be in any notation. `Guard` lets nothing connect to such a host, whatever is allowed.
    """
    host = url.host.rstrip(".").lower()
    address = _written_address(host)
    return host in _METADATA_NAMES if address is None else not _is_no_metadata(address)


def _written_address(host: str) -> str | None:
    """Return the address that a host is, in whatever notation; None for a host name."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:  # the notations of inet_aton(3), which resolvers understand: 127.1, 0x7f000001, 2130706433
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return None


def is_public(address: str) -> bool:
    """Tell whether an address is on the internet: neither this machine's own nor a cloud's metadata service.

    Raises ValueError: for a text that is not an address.
    """
    parsed = _effective(address)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed not in _GLOBAL_UNICAST:
        return False
    return parsed.is_global and not parsed.is_multicast and _is_no_metadata(address) and not _is_our_own(address)


def _is_no_metadata(address: str) -> bool:
    parsed = _effective(address)
    return not any(parsed in network for network in _METADATA)


def _effective(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the IPv4 address that an IPv6 address embeds, else the address itself."""
    parsed = ipaddress.ip_address(address)
    if not isinstance(parsed, ipaddress.IPv6Address):
        return parsed
    if parsed in _NAT64:
        return ipaddress.IPv4Address(int(parsed) & 0xFFFF_FFFF)
    return parsed.ipv4_mapped or parsed.sixtofour or parsed


def _is_our_own(address: str) -> bool:
    """Tell whether an address is one of this machine's interfaces.

    It is one exactly if the system takes the same address as the source of packets to it. Nothing is sent.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            own: str = probe.getsockname()[0]
    except OSError:
        return False  # no way there at all
    return ipaddress.ip_address(own.partition("%")[0]) == ipaddress.ip_address(address)
