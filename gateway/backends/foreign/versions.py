"""The versions of servers with which drivers were tried.

Knows nothing of what becomes of a server of another version.
"""

from __future__ import annotations

import re

import msgspec

from gateway.backends.foreign.connection import ServerGone
from gateway.backends.foreign.server import Server

VERSION_WITHIN_S = 5.0
MAX_VERSION_CHARS = 64
OK, NOT_FOUND = 200, 404

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode


class VersionRange(msgspec.Struct, frozen=True):
    """The versions of one kind of server with which its driver was tested, and where a server reports its own."""

    path: str
    """The path at which a server reports its version, in a JSON object."""
    field: str
    """The name of the field of that object that holds the version."""
    least: tuple[int, ...]
    """The oldest version."""
    last: tuple[int, ...] = ()
    """The newest version, as far as its numbers go: (0, 32) stands for all of 0.32. () where builds come daily."""

    def untested_reason(self, version: str) -> str:
        """Return a sentence about a version outside of this range; "" for one within, or one without a number."""
        found = tuple(int(each[:9]) for each in re.findall(r"\d+", version))
        is_known = self.least <= found[: len(self.least)] and found[: len(self.last)] <= self.last
        if not any(found) or is_known:
            return ""
        return f"its version {version} is none of those that were tried ({self})"

    def __str__(self) -> str:
        least, last = (".".join(map(str, each)) for each in (self.least, self.last))
        return f"{least} to {last}" if last else f"{least} and later"


async def version_of(server: Server, tested: VersionRange) -> str | None:
    """Return the version that a server reports; "" where it reports none, None where it could not be asked."""
    try:
        reply = await server.ask_whole("GET", tested.path, within_s=VERSION_WITHIN_S)
    except ServerGone:
        return None
    if reply.status != OK:
        return "" if reply.status == NOT_FOUND else None
    try:
        text = _decode_text(_decode(reply.body)[tested.field])
    except (KeyError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return "".join(each for each in text[:MAX_VERSION_CHARS] if each.isprintable())
