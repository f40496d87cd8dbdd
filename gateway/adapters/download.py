"""Downloads one file from an https URL that a stranger names: bounded in bytes, in idle time and in redirects.

Each hop is judged anew: its scheme, whether the source may send there, and the address it leads to. The caller bounds
the total time (`gateway.adapters.fetch`). Knows nothing of the bytes' meaning.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from gateway.support.names import why_no_address
from gateway.support.outbound import Guard, NotPublic, new_client, send_to, trusted_authorities

MAX_REDIRECTS = 3
IDLE_S = 30.0
"""Seconds that a server may take to accept, to answer, and to send the next bytes."""

MayGo = Callable[[httpx.URL], bool]
"""A function that tells whether a source may redirect to this URL."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class FetchFailed(Exception):
    """The error for content that did not arrive; the message says why, for the person who asked for it."""


class Received:
    """The bytes of one import that have arrived so far, over all of its files, and the most that may arrive.

    The downloader adds, the reporter reads.
    """

    def __init__(self, max_bytes: int) -> None:
        self.num_bytes = 0
        self.expected_bytes: int | None = None
        self._max_bytes = max_bytes

    def add(self, num_bytes: int) -> None:
        """Count bytes that have arrived.

        Raises FetchFailed: when more bytes have arrived than the limit.
        """
        self.num_bytes += num_bytes
        self._check(self.num_bytes)

    def expect(self, num_bytes: int) -> None:
        """Record that this many more bytes are announced.

        Raises FetchFailed: when they exceed the limit, before any of them arrives.
        """
        self.expected_bytes = self.num_bytes + num_bytes
        self._check(self.expected_bytes)

    def _check(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise FetchFailed(
                f"the adapter is larger than {self._max_bytes} bytes, the most that LORIKEET_MAX_ADAPTER_BYTES allows"
            )


class Downloader:
    """Downloads files.

    tls: the trusted authorities; None: those that the machine trusts. idle_s: as IDLE_S.
    """

    def __init__(self, guard: Guard, *, tls: ssl.SSLContext | None = None, idle_s: float = IDLE_S) -> None:
        self._guard = guard
        self._tls = tls or trusted_authorities()
        self._idle_s = idle_s

    async def download(
        self, url: str, into: Path, received: Received, *, may_go: MayGo, headers: Mapping[str, str] | None = None
    ) -> httpx.Headers:
        """Write the URL's content to a new file and return the headers of the first answer.

        headers: headers for the host of the URL alone, wherever it redirects to.

        Raises FetchFailed: when the content does not arrive.
        Raises OSError: when the file cannot be written.
        """
        try:
            async with new_client(httpx.Timeout(self._idle_s), self._tls) as client:
                return await self._follow_redirects(client, httpx.URL(url), into, received, may_go, headers or {})
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise FetchFailed(_in_words(error, self._idle_s)) from error

    async def _follow_redirects(
        self,
        client: httpx.AsyncClient,
        url: httpx.URL,
        into: Path,
        received: Received,
        may_go: MayGo,
        headers: Mapping[str, str],
    ) -> httpx.Headers:
        first_host, first_headers = url.netloc, None
        for _ in range(MAX_REDIRECTS + 1):
            own = headers if url.netloc == first_host else {}
            async with self._request(client, url, may_go, own) as response:
                first_headers = first_headers or response.headers
                if response.status_code not in _REDIRECTS:
                    await _write_content(response, into, received)
                    return first_headers
                location = response.headers.get("location")
                if location is None:
                    raise FetchFailed(f"{url.host} answered with a redirect that names no URL")
                url = url.join(location)
        raise FetchFailed(f"the source redirects more than {MAX_REDIRECTS} times")

    @asynccontextmanager
    async def _request(
        self, client: httpx.AsyncClient, url: httpx.URL, may_go: MayGo, headers: Mapping[str, str]
    ) -> AsyncIterator[httpx.Response]:
        if url.scheme != "https" or not url.host or url.userinfo:
            raise FetchFailed("the source redirects to a URL that is not an https URL or has a user name")
        if not may_go(url):
            raise FetchFailed(
                f"the source redirects to a place on {url.host} that LORIKEET_ADAPTER_SOURCES does not allow"
            )
        try:
            address = await self._guard.address_of(url)
        except NotPublic as error:
            raise FetchFailed(str(error)) from None
        except (socket.gaierror, UnicodeError) as error:
            raise FetchFailed(f"the host name {url.host} {why_no_address(error)}") from None
        async with send_to(client, address, "GET", url, headers=headers) as response:
            yield response


async def _write_content(response: httpx.Response, into: Path, received: Received) -> None:
    host = response.request.headers["host"]
    if response.status_code != 200:
        raise FetchFailed(f"{host} answered with status {response.status_code}")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise FetchFailed(f"{host} answered in a content encoding that the request did not accept")
    length = response.headers.get("content-length", "")
    if length.isascii() and length.isdigit():
        received.expect(int(length))
    await write_chunks(response.aiter_raw(), into, received)


async def write_chunks(chunks: AsyncIterable[bytes], into: Path, received: Received) -> None:
    """Write all chunks to a new file and count their bytes.

    Raises FetchFailed: when more bytes arrive than may.
    Raises OSError: when the file cannot be written.
    Raises the errors of `chunks`: when the source fails.
    """
    with into.open("xb") as file:
        async for chunk in chunks:
            received.add(len(chunk))
            await asyncio.to_thread(file.write, chunk)  # a slow disk must not hold up the event loop


def _in_words(error: Exception, idle_s: float) -> str:
    """Return why a download failed.

    No answer of a server is quoted: a tenant who names a source chooses the server, and must not read its answers.

    idle_s: the seconds without bytes after which a download ends.
    """
    if isinstance(error, httpx.TimeoutException):
        return f"the source's server sent nothing for {idle_s:g} s"
    if isinstance(error, httpx.ConnectError):
        if _comes_from(error, ssl.SSLError):
            return "the certificate of the source's server is not valid for its host name"
        return "the source's server cannot be reached"
    return "the connection to the source's server broke, or the answer was not HTTP"


def _comes_from(error: BaseException | None, kind: type[Exception]) -> bool:
    """Tell whether an error of this kind is among the causes of another."""
    while error is not None and not isinstance(error, kind):
        error = error.__context__
    return error is not None
