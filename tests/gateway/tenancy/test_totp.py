"""One-time codes are those of RFC 6238, and good for their own time step and its neighbors."""

from __future__ import annotations

import pytest

from gateway.domain.tenancy.totp import base32, code_at, matching_step, provisioning_uri

SECRET = b"12345678901234567890"
# RFC 6238, appendix B, SHA-1, the last six of the eight digits.
VECTORS = [
    (59, "287082"),
    (1111111109, "081804"),
    (1111111111, "050471"),
    (1234567890, "005924"),
    (2000000000, "279037"),
    (20000000000, "353130"),
]


@pytest.mark.parametrize(("unix_s", "code"), VECTORS)
def test_codes_equal_the_test_vectors_of_the_rfc(unix_s: int, code: str) -> None:
    assert code_at(SECRET, unix_s // 30) == code
    assert matching_step(SECRET, code, unix_s) == unix_s // 30


def test_a_clock_may_be_one_step_off_and_no_more() -> None:
    step = 1111111109 // 30
    code = code_at(SECRET, step)
    assert [matching_step(SECRET, code, (step + off) * 30) for off in (-2, -1, 0, 1, 2)] == [
        None,
        step,
        step,
        step,
        None,
    ]


@pytest.mark.parametrize("code", ["", "000000", "28708", "２８７０８２", "287082 "])
def test_a_wrong_code_matches_no_step(code: str) -> None:
    assert matching_step(SECRET, code, 59) is None


def test_an_authenticator_can_read_the_secret() -> None:
    assert base32(SECRET) == "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ"
    assert provisioning_uri(SECRET, "a+b@c.de") == (
        "otpauth://totp/Lorikeet:a%2Bb%40c.de?secret=GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ&issuer=Lorikeet"
    )
