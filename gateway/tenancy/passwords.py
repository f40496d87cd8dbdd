"""Passwords as argon2id (RFC 9106), with the RFC's parameters for memory-constrained machines: 64 MiB, 3 passes.

Hashing takes tens of milliseconds and 64 MiB, so it runs in threads, few at a time. Knows nothing about users.
"""

from __future__ import annotations

import asyncio

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

MIN_CHARS = 12
MAX_CHARS = 1024
"""Bounds what one login may cost."""

MAX_AT_ONCE = 2


class Passwords:
    """One per gateway process. hasher: argon2-cffi's defaults are the RFC's parameters."""

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._hasher = hasher or PasswordHasher()
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._of_nobody: str | None = None

    async def hash(self, password: str) -> str:
        """In the PHC string format, with a salt of its own."""
        async with self._slots:
            return await asyncio.to_thread(self._hasher.hash, password)

    async def matches(self, password_hash: str | None, password: str) -> bool:
        """Whether it is the password. Without a hash the answer is no and takes as long, so that time tells nothing."""
        if password_hash is None:
            if self._of_nobody is None:
                self._of_nobody = await self.hash("")
            await self._verify(self._of_nobody, f"not {password}")
            return False
        return await self._verify(password_hash, password)

    async def _verify(self, password_hash: str, password: str) -> bool:
        async with self._slots:
            try:
                return await asyncio.to_thread(self._hasher.verify, password_hash, password)
            except (VerificationError, InvalidHashError):
                return False
