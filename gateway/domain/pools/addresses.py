"""The addresses of servers of another maker that agents start: Unix sockets, as URLs. Pure text.

The URL has the whole path of the socket. Beside the socket lies the file with the key that the server asks for.
"""

from __future__ import annotations

SOCKET_SCHEME = "http+unix://"


def address_of_socket(path: str) -> str:
    """Return the address of a server that listens on the socket with this absolute path."""
    return f"{SOCKET_SCHEME}{path}"


def socket_of(address: str) -> str | None:
    """Return the path of the socket in an address; None for an address of another kind."""
    return address.removeprefix(SOCKET_SCHEME) if address.startswith(SOCKET_SCHEME) else None


def key_file_of(socket: str) -> str:
    """Return the path of the file with the key of the server that listens on a socket."""
    return f"{socket}.key"
