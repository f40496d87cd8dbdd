"""A URL from others leads this process to public addresses alone, unless private ones are allowed, and to the very
address that was checked."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import httpx
import pytest

from gateway.support.outbound import (
    Guard,
    NotPublic,
    is_public,
    names_metadata_service,
    names_private_address,
    new_client,
    send_to,
)

PUBLIC = Guard.of(allow_private=False)
ANYWHERE = Guard.of(allow_private=True)

METADATA = ["169.254.169.254", "[fe80::1]", "[fd00:ec2::254]", "100.100.100.200", "168.63.129.16", "192.0.0.192"]
PRIVATE = [
    *METADATA,
    "127.0.0.1",
    "10.0.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "[::1]",
    "[::127.0.0.1]",
    "[fec0::1]",
    "[fd00::1]",
    "[::ffff:10.0.0.1]",
    "[64:ff9b:1::1]",
    "[64:ff9b::a00:1]",
    "[64:ff9b::a9fe:a9fe]",
    "[2002:a00:1::1]",
]


@pytest.mark.parametrize("host", PRIVATE)
async def test_private_hosts_are_refused(host: str) -> None:
    with pytest.raises(NotPublic):
        await PUBLIC.address_of(httpx.URL(f"http://{host}/"))


@pytest.mark.parametrize("host", [*METADATA, "[::ffff:169.254.169.254]"])
async def test_metadata_services_are_refused_even_where_private_addresses_are_not(host: str) -> None:
    with pytest.raises(NotPublic):
        await ANYWHERE.address_of(httpx.URL(f"http://{host}/"))


NAMED_METADATA = [*METADATA, "2852039166", "0xa9fea9fe", "metadata.google.internal", "METADATA.goog."]


@pytest.mark.parametrize("host", NAMED_METADATA)
def test_a_metadata_service_is_known_by_how_it_is_written(host: str) -> None:
    assert names_metadata_service(httpx.URL(f"http://{host}/"))


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.1", "example.com", "8.8.8.8", "localhost"])
def test_other_hosts_are_no_metadata_services(host: str) -> None:
    assert not names_metadata_service(httpx.URL(f"http://{host}/"))


async def test_public_addresses_are_allowed() -> None:
    assert await PUBLIC.address_of(httpx.URL("https://1.1.1.1/")) == "1.1.1.1"
    if socket.has_ipv6:
        assert await PUBLIC.address_of(httpx.URL("https://[2606:4700::1111]/")) == "2606:4700::1111"
    assert await ANYWHERE.address_of(httpx.URL("http://localhost/")) in ("127.0.0.1", "::1")


async def test_a_name_with_one_private_address_is_refused() -> None:
    async def both(host: str, port: int) -> Sequence[str]:
        return ["1.1.1.1", "10.0.0.1"]

    with pytest.raises(NotPublic, match=r"the address of example\.com is not a public address"):
        await Guard(is_public, both).address_of(httpx.URL("https://example.com/"))


async def test_only_http_leads_anywhere() -> None:
    for url in ("ftp://1.1.1.1/", "file:///etc/passwd", "//1.1.1.1/"):
        with pytest.raises(NotPublic):
            await ANYWHERE.address_of(httpx.URL(url))


@pytest.mark.parametrize("host", ["localhost.", "a.localhost", "127.1", "0x7f000001", "2130706433", "[::1]", "10.1"])
def test_private_addresses_in_every_notation(host: str) -> None:
    assert names_private_address(httpx.URL(f"http://{host}/"))


async def test_the_connection_goes_to_the_address_that_was_judged() -> None:
    """A name that resolves to another address by the time of the connection, as in DNS rebinding, is not looked up
    again."""
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = httpx.URL(f"http://name.that.has.no.address.invalid:{port}/x")
    async with new_client(5.0) as client, send_to(client, "127.0.0.1", "GET", url, headers={}) as response:
        assert response.status_code == 204
    server.close()
    assert heads[0].startswith(b"GET /x HTTP/1.1\r\nhost: name.that.has.no.address.invalid:%d\r\n" % port)
