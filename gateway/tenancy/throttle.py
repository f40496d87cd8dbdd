"""Pauses between failed logins, without shutting out the person whose e-mail address is guessed at.

An attempt counts against its maker: the device, where the person has logged in with it before, and otherwise the pair
of e-mail address and network. So guesses from elsewhere do not concern the person. Attempts at one address from
networks and devices that it has never logged in from also count together, however many networks they come from; beyond
a number of them one is looked at every PAUSE_S seconds, and others wait for their turn. Attempts at addresses that
nobody has are counted in the same way, so that nothing here tells which addresses exist.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from typing import TYPE_CHECKING

from gateway.db.organization import logins
from gateway.domain.errors import TooManyAttempts
from gateway.domain.tenancy.addresses import client_of

if TYPE_CHECKING:
    from gateway.db.pool import Connection

FREE_FAILURES = 4
MAX_DELAY_S = 900.0
FREE_FROM_STRANGERS = 100
PAUSE_S = 30.0
MAX_WAITING = 64
"""The most attempts, each from another network, that wait for their turn in one gateway."""


def lockout_s(num_failures: int) -> float:
    """Return the seconds for which no password is checked after this many failures in a row.

    After the first failures that is 0, then 1 s, doubling up to 15 minutes.
    """
    if num_failures <= FREE_FAILURES:
        return 0.0
    return min(2.0 ** min(num_failures - FREE_FAILURES - 1, 20), MAX_DELAY_S)


def pause_s(num_failures: int) -> float:
    """Return the seconds for which no stranger's password is checked after this many failures of all strangers."""
    return PAUSE_S if num_failures > FREE_FROM_STRANGERS else 0.0


class Paused(TooManyAttempts):
    """The error for an attempt at an e-mail address while strangers' attempts are paused.

    The attempt may wait for its turn.
    """


class Throttle:
    """The pauses of one gateway process; the counters are in the database."""

    def __init__(self) -> None:
        self._waiting: set[str] = set()

    async def wait_turn(self, address: str, paused: Paused) -> None:
        """Wait until a paused attempt may be made again.

        Raises Paused: when another attempt of this network, or too many of others, wait already.
        """
        client = client_of(address)
        if client in self._waiting or len(self._waiting) >= MAX_WAITING:
            raise paused
        self._waiting.add(client)
        try:
            await asyncio.sleep(paused.retry_after_s or 0.0)
        finally:
            self._waiting.discard(client)

    async def count_attempt(self, conn: Connection, email: str, address: str, device: bytes | None) -> None:
        """Count an attempt as failed before its password is looked at.

        Parallel guesses cannot overtake the count. Success forgets all failures (`unlock`).

        device: the proof that the person has logged in with this device before; None without one.

        Raises TooManyAttempts: when no attempt may be made now.
        Raises Paused: when no attempt of a stranger may be made now.
        """
        async with conn.transaction():
            known = await logins.find_known_client(conn, email, device)
            if known.device and device is not None:
                await _count_failure(conn, email, _identity("device", email, device.hex()))
                return
            client = client_of(address)
            await _count_failure(conn, email, _identity("pair", email, client))
            if client not in map(client_of, known.addresses):
                await _count_failure(conn, email, _identity_of_strangers(email), of_strangers=True)


async def unlock(conn: Connection, email: str) -> None:
    """Delete the counts of failed attempts for this e-mail address from all networks and devices."""
    await logins.forget_failures(conn, _identity("person", email))


async def _count_failure(conn: Connection, email: str, identity: bytes, *, of_strangers: bool = False) -> None:
    num_failures = await logins.count_failure(conn, identity, _identity("person", email))
    if num_failures is None:
        locked_s = await logins.locked_for_s(conn, identity)
        raise _refusal(Paused if of_strangers else TooManyAttempts, locked_s)
    if delay_s := pause_s(num_failures) if of_strangers else lockout_s(num_failures):
        await logins.lock_identity(conn, identity, delay_s)


def _refusal(kind: type[TooManyAttempts], locked_s: float) -> TooManyAttempts:
    return kind(
        f"Too many logins with this e-mail address failed. Try again in {max(1, math.ceil(locked_s))} s.",
        code="login_locked",
        retry_after_s=locked_s,
    )


def _identity_of_strangers(email: str) -> bytes:
    return _identity("strangers", email)


def _identity(*parts: str) -> bytes:
    """Return the digest that identifies a counter. Only the last part may contain a NUL."""
    return hashlib.sha256("\0".join(parts).encode()).digest()
