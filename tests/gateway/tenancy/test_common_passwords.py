"""A new password must not be one that guessers try early, whatever digits and signs are put around it."""

from __future__ import annotations

import secrets

import pytest

from gateway.domain.tenancy.common_passwords import is_common

COMMON = [
    "password1234",
    "Password123!",
    "P@ssw0rd2024!!",
    "ＰＡＳＳＷＯＲＤ１２３４",
    "qwertyuiop123",
    "123456789012",
    "aaaaaaaaaaaa",
    "abcabcabcabc",
    "x7x7x7x7x7x7x7",
    "letmein-letmein",
    "1qaz2wsx3edc",
    "trustno1trustno1",
    "Summer2026!!!!",
    "iloveyou-forever",
    "lorikeet2026!",
    "Admin.Admin.2026",
    "ann.smith.1984",
    "smithsmith99!!",
]
FINE = [
    "correct horse battery staple",
    "purple monkey dishwasher",
    "a long new password",
    "tr0ub4dor&3xyz",
    "welcome to the jungle",
    "xk7-vz2-qq9-mmw",
    "Grüße aus Überlingen",
    "пароль для работы",
]


@pytest.mark.parametrize("password", COMMON)
def test_a_password_that_guessers_try_early_is_common(password: str) -> None:
    assert is_common(password, "ann.smith@example.com", "Ann Smith")


@pytest.mark.parametrize("password", FINE)
def test_a_password_unlike_such_words_is_not_common(password: str) -> None:
    assert not is_common(password, "ann.smith@example.com", "Ann Smith")


def test_random_passwords_are_never_common() -> None:
    assert not any(is_common(secrets.token_urlsafe(15)) for _ in range(300))
    assert not any(is_common(secrets.token_hex(16)) for _ in range(300))


def test_a_long_password_takes_no_time() -> None:
    assert is_common("password" * 128)
    assert not is_common("kd83 jf8 sk2 lw9 " * 60 + "x")
