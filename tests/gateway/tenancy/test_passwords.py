"""Passwords are hashed as RFC 9106 recommends, and an unknown user costs as much as a known one."""

from __future__ import annotations

from argon2 import PasswordHasher

from gateway.tenancy.passwords import Passwords


async def test_a_hash_is_argon2id_with_the_parameters_of_the_rfc_and_a_salt_of_its_own() -> None:
    passwords = Passwords()
    first, second = await passwords.hash("correct horse"), await passwords.hash("correct horse")
    assert first.startswith("$argon2id$v=19$m=65536,t=3,p=4$")
    assert first != second
    assert await passwords.matches(first, "correct horse")
    assert not await passwords.matches(first, "correct hors")
    assert not await passwords.matches("no hash", "correct horse")


class CountingHasher(PasswordHasher):
    """A hasher that counts how often a password is checked."""

    def __init__(self) -> None:
        super().__init__(time_cost=1, memory_cost=64, parallelism=1)
        self.num_checks = 0

    def verify(self, hash: str | bytes, password: str | bytes) -> bool:  # type: ignore[override]
        self.num_checks += 1
        return bool(super().verify(hash, password))


async def test_without_a_hash_a_password_is_checked_all_the_same_and_never_right() -> None:
    hasher = CountingHasher()
    passwords = Passwords(hasher)
    for password in ("", "x", "not "):
        assert not await passwords.matches(None, password)
    assert hasher.num_checks == 3
