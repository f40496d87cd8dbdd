"""Passwords of gateways that tests start in their own process: argon2id with the least work that it allows.

A login with the product's parameters takes a tenth of a second of a processor.
`tests/gateway/tenancy/test_passwords.py` checks those parameters, and whole installations use them.
"""

from __future__ import annotations

from argon2 import PasswordHasher

from gateway.tenancy.passwords import Passwords


def quick_passwords() -> Passwords:
    """Return a hasher that hashes and checks passwords in less than a millisecond."""
    return Passwords(PasswordHasher(time_cost=1, memory_cost=64, parallelism=1))
