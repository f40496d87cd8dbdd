"""Look-ups of host names that strangers give: each in a thread of its own, a name once at a time.

The system's resolver blocks for half a minute when the servers of a name do not answer, whatever its caller waits for.
In the threads that a process shares, some names of one organization would keep the work of all others waiting.
"""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Callable, Sequence

from gateway.support.threads import in_new_thread

MAX_AT_ONCE = 256
"""The most names that are looked up at once; as many threads, nearly all of which wait."""

Resolve = Callable[[str, int], Sequence[str]]
"""A function that blocks until it knows the addresses of a host name, for a port, in the order of preference.

Raises OSError or UnicodeError: when the name has no address.
"""


def system_addresses(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a name that the system's resolver gives."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]).partition("%")[0] for entry in found]


def why_no_address(error: OSError | UnicodeError) -> str:
    """Return the words for a look-up's error, as the end of a sentence that begins with the host name."""
    if isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN:
        return "could not be looked up just now, try again later"
    return "has no address"


class Names:
    """The look-ups under way for one purpose, such as webhooks. Look-ups for other purposes do not wait for these."""

    def __init__(self, resolve: Resolve = system_addresses, max_at_once: int = MAX_AT_ONCE) -> None:
        self._resolve = resolve
        self._max_at_once = max_at_once
        self._under_way: dict[tuple[str, int], asyncio.Future[Sequence[str]]] = {}

    async def look_up(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a name. All who ask for a name while it is being looked up get the same answer.

        Raises OSError or UnicodeError: when the name has no address.
        Raises socket.gaierror: when too many names are being looked up, or the system has no more threads.
        """
        name = host, port
        under_way = self._under_way.get(name)
        if under_way is None:
            if len(self._under_way) >= self._max_at_once:
                raise socket.gaierror(socket.EAI_AGAIN, "too many host names are being looked up")
            try:
                under_way = in_new_thread(functools.partial(self._resolve, host, port), "look-up")
            except RuntimeError as error:
                raise socket.gaierror(socket.EAI_AGAIN, f"no thread to look a host name up in: {error}") from None
            self._under_way[name] = under_way
            under_way.add_done_callback(functools.partial(self._forget_look_up, name))
        return await asyncio.shield(under_way)

    def _forget_look_up(self, name: tuple[str, int], look_up: asyncio.Future[Sequence[str]]) -> None:
        del self._under_way[name]
        if not look_up.cancelled():
            look_up.exception()  # nobody may be waiting any more
