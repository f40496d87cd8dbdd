"""Passwords as argon2id (RFC 9106), with the RFC's parameters for memory-constrained machines: 64 MiB, 3 passes.

Hashing takes tens of milliseconds and 64 MiB, so it runs in threads of its own, few and at low priority. Knows nothing
about users.
"""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

MIN_CHARS = 12
MAX_CHARS = 1024
"""The most characters of a password, which bounds the cost of one login."""

MAX_AT_ONCE = 2

NICENESS = 10
"""The niceness of the hashing threads: requests and engines come first, and a login still ends within seconds on a
busy machine."""


class Passwords:
    """Hashes and checks passwords.

    A gateway process has one. hasher: argon2-cffi's defaults are the RFC's parameters.
    """

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._hasher = hasher or PasswordHasher()
        self._threads = ThreadPoolExecutor(MAX_AT_ONCE, "password", initializer=_lower_priority)
        self._of_nobody: str | None = None

    async def hash(self, password: str) -> str:
        """Hash a password in the PHC string format, with a salt of its own."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._hasher.hash, password)

    async def matches(self, password_hash: str | None, password: str) -> bool:
        """Tell whether a password matches its hash.

        Without a hash, the answer is no after the same time, so that the time tells nothing.
        """
        if self._of_nobody is None:  # by the first login, so that no other one takes longer
            self._of_nobody = await self.hash("")
        if password_hash is None:
            await self._verify(self._of_nobody, f"not {password}")
            return False
        return await self._verify(password_hash, password)

    async def _verify(self, password_hash: str, password: str) -> bool:
        verify = asyncio.get_running_loop().run_in_executor(self._threads, self._hasher.verify, password_hash, password)
        try:
            return await verify
        except (VerificationError, InvalidHashError):
            return False


def _lower_priority() -> None:
    """Lower the priority of the calling thread alone, as Linux has it; argon2's own threads inherit it."""
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))
