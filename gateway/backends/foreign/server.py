"""The connections of one gateway to one server: opened if the server's address is allowed, and used again.

No proxy, no redirect, no compression; TLS is verified for the name in the URL. Knows nothing of what is asked.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import urllib.parse
from collections.abc import Awaitable, Callable, Hashable, Mapping

import msgspec

from gateway.backends.foreign.connection import UNREAD_FOR_S, Connection, ServerChanged, ServerGone
from gateway.backends.foreign.reply import BadReply, check_objects
from gateway.domain.pools.addresses import socket_of
from gateway.support.names import why_no_address

MAX_IDLE = 64
"""Connections that stay open for later requests."""

END_WITHIN_S = 1.0
"""The most seconds from the last event to the response's end, so that the connection is used again."""

LOST_WITHIN_S = 1.0
"""The most seconds within which a request over an idle connection may be lost and sent again.

Later, the server may have begun to work on it.
"""

MAX_REPLY_BYTES = 1 << 20
"""Bytes of a whole reply that is no stream."""

AddressOf = Callable[[str], Awaitable[str]]
"""A function that returns the address to connect to for a URL.

Raises OSError or UnicodeError: when the URL has no address.
Raises NotPublic: when no connection to the address is allowed.
"""


class Proof(msgspec.Struct, frozen=True):
    """A question whose answer shows that the server behind a connection is the one whose condition is known.

    A connection leads to one process, so that one answer holds for all requests with the same proof over it. For
    another proof the question is asked anew: a server that ends may go on with its connections while the next one runs
    at its address.
    """

    path: str
    """The path of the GET request that asks the question."""
    expected: Hashable
    """The value of an answer by the known server."""
    read: Callable[[bytes], Hashable]
    """The function that returns the value of an answer's body. Raises BadReply: when the body is no answer."""


class Reply(msgspec.Struct, frozen=True):
    """A whole reply."""

    status: int
    """The HTTP status."""
    body: bytes


class Server:
    """The connections to one server, by its URL."""

    def __init__(
        self,
        url: str,
        address_of: AddressOf,
        tls: Callable[[], ssl.SSLContext],
        *,
        connect_s: float,
        unread_s: float = UNREAD_FOR_S,
        is_outside: Callable[[str], bool] = lambda address: True,
    ) -> None:
        """Prepare without connections.

        address_of: returns the address of the URL, if a connection there is allowed; not called for a socket.
        tls: returns the authorities that are trusted.
        connect_s: the most seconds for connecting.
        unread_s: seconds for which too much of a response may be unread before the response is given up.
        is_outside: tells whether the internet reaches an address. Without it, that is assumed of each.
        """
        self._socket = socket_of(url)
        parts = urllib.parse.urlsplit(url if self._socket is None else "http://localhost")
        assert parts.hostname is not None
        self.url = url
        """The URL without a slash at its end."""
        self.key = ""
        """The key that the server asks for, sent as a bearer token; "" sends none."""
        self._name = parts.hostname
        self._is_tls = parts.scheme == "https"
        self._port = parts.port or (443 if self._is_tls else 80)
        self._path = parts.path.removesuffix("/v1")
        self._host = parts.netloc
        self._address_of = address_of
        self._tls = tls
        self._connect_s = connect_s
        self._unread_s = unread_s
        self._is_outside = is_outside
        self._idle: list[Connection] = []
        self._ending: set[asyncio.Task[None]] = set()

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        request_id: str = "",
        trace: str = "",
        is_traced_outside: bool = False,
        until_s: float,
        sent: Callable[[Connection], None] | None = None,
        proof: Proof | None = None,
        key: str | None = None,
    ) -> Connection:
        """Send a request, and return the connection once the head of its response is there; `give` takes it back.

        until_s: the time, by the loop's clock, until which the head has to be there. sent: called with each connection
        over which the request is sent, before the head is there; there are two where the first had been closed while it
        was idle. trace: the header `traceparent`; "" sends none. is_traced_outside: True if servers get the header
        whose addresses the internet reaches. proof: asked over a connection that was not proved yet. key: sent in place
        of the key that the server usually gets.
        Raises ServerGone: when the server cannot be reached, or does not answer in time.
        Raises ServerChanged: when a proof fails.
        """
        headers = {"host": self._host, "accept-encoding": "identity", "user-agent": "lorikeet"}
        if bearer := self.key if key is None else key:
            headers["authorization"] = f"Bearer {bearer}"
        if body:
            headers["content-type"] = "application/json"
        if request_id:
            headers["x-request-id"] = request_id

        async def asked(connection: Connection) -> Connection:
            if trace and (is_traced_outside or connection.is_inside):
                headers["traceparent"] = trace
            try:
                if sent is not None:
                    sent(connection)
                if proof is not None and connection.proved != proof.expected:
                    await self._prove(connection, proof, headers, until_s)
                connection.send(method, self._path + path, headers, body)
                await connection.head(until_s)
                if connection.headers.get("content-encoding", "identity") != "identity":
                    raise ServerGone("its response is compressed, which was not asked for", has_begun=True)
            except BaseException:
                connection.close()
                raise
            return connection

        if (idle := self._take_idle(proof)) is not None:
            began_s = _now_s()
            try:
                return await asked(idle)
            except ServerGone as gone:
                is_at_once = _now_s() - began_s < LOST_WITHIN_S
                if gone.has_begun or not gone.was_lost or not is_at_once:
                    raise
        return await asked(await self._connect(until_s))

    async def _prove(self, connection: Connection, proof: Proof, headers: Mapping[str, str], until_s: float) -> None:
        """Ask the question of a proof over a connection, and record that the connection has proved it.

        until_s: the time, by the loop's clock, until which the answer has to be there.

        Raises as `ask`.
        """
        connection.send("GET", self._path + proof.path, headers, b"")
        await connection.head(until_s)
        body = await read_at_most(connection, MAX_REPLY_BYTES, until_s)
        if connection.status != 200 or not _proves(body, proof):
            raise ServerChanged("the server is not the one that was asked before", has_begun=True)
        if not connection.is_reusable:
            raise ServerGone("it closes its connection after each request", has_begun=True)
        connection.proved = proof.expected

    async def ask_whole(
        self, method: str, path: str, body: bytes = b"", *, within_s: float, proof: Proof | None = None
    ) -> Reply:
        """Return a whole reply of at most MAX_REPLY_BYTES and MAX_OBJECTS.

        body: JSON to send, if any. within_s: the most seconds until all of the reply is there. proof: the question that
        a connection must have answered before; None: any connection will do.

        Raises as `ask`.
        """
        try:
            async with asyncio.timeout(within_s):
                until_s = _now_s() + within_s
                connection = await self.ask(method, path, body, until_s=until_s, proof=proof)
                try:
                    data = await read_at_most(connection, MAX_REPLY_BYTES, until_s)
                    check_objects(data)
                    return Reply(connection.status, data)
                except BadReply as bad:
                    raise ServerGone(str(bad), has_begun=True) from None
                finally:
                    self.give(connection)
        except TimeoutError:
            raise ServerGone("nothing came in time") from None

    def give(self, connection: Connection, *, has_ended: bool = False) -> None:
        """Take a connection back for the next request, if its response was read whole; else close it.

        has_ended: True if only the end of the response is still to come, without content.
        """
        if has_ended and not connection.is_done and connection.is_open:
            task = asyncio.create_task(self._give_once_done(connection))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            return
        is_kept = connection.is_done and connection.is_reusable and connection.is_open
        if is_kept and len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close the connections that nobody uses."""
        for task in self._ending:
            task.cancel()
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    async def _give_once_done(self, connection: Connection) -> None:
        try:
            if await connection.read(_now_s() + END_WITHIN_S):
                connection.close()
        except ServerGone:
            pass
        except BaseException:
            connection.close()
            raise
        self.give(connection)

    def _take_idle(self, proof: Proof | None) -> Connection | None:
        """Take the idle connection that was used last and is still open; with a proof, one that has this proof."""
        for connection in reversed([each for each in self._idle if proof is None or each.proved == proof.expected]):
            self._idle.remove(connection)
            if connection.is_open:
                return connection
        return None

    async def _connect(self, until_s: float) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(min(self._connect_s, until_s - _now_s())):
                if self._socket is not None:
                    _, connection = await loop.create_unix_connection(self._new_connection, self._socket)
                    connection.is_inside = True
                    return connection
                address = await self._address_of(self.url)
                _, connection = await loop.create_connection(
                    self._new_connection,
                    address,
                    self._port,
                    ssl=self._tls() if self._is_tls else None,
                    server_hostname=self._name if self._is_tls else None,
                )
                connection.is_inside = not self._is_outside(address)
        except TimeoutError:
            with_tls = " with TLS, as the URL's https:// asks for," if self._is_tls else ""
            raise ServerGone(f"it does not accept a connection{with_tls} in time") from None
        except (OSError, UnicodeError) as error:
            raise ServerGone(f"no connection: {_why_none(error)}") from None
        return connection

    def _new_connection(self) -> Connection:
        return Connection(self._drop_idle, self._unread_s)

    def _drop_idle(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)


def _why_none(error: OSError | UnicodeError) -> str:
    """Return the reason why a connection could not be opened, in words for operators."""
    if isinstance(error, socket.gaierror | UnicodeError):
        return f"the name of its host {why_no_address(error)}"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens at its address (connection refused)"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return "no TLS, which the URL's https:// asks for"
    return type(error).__name__ if error.errno is None else os.strerror(error.errno)


def _proves(body: bytes, proof: Proof) -> bool:
    try:
        return proof.read(body) == proof.expected
    except BadReply:
        return False


async def read_at_most(connection: Connection, max_bytes: int, until_s: float) -> bytes:
    """Return the whole body of a response.

    max_bytes: the most bytes of the body. until_s: the time, by the loop's clock, until which all of the body has to be
    there.

    Raises ServerGone: when it is larger, cut off or late.
    """
    parts, size = [], 0
    while data := await connection.read(until_s):
        if _now_s() > until_s:
            raise ServerGone("its reply takes too long", has_begun=True)
        size += len(data)
        if size > max_bytes:
            raise ServerGone("its reply is too large", has_begun=True)
        parts.append(data)
    return b"".join(parts)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
