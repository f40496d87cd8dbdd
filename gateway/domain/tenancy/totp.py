"""Time-based one-time passwords (RFC 6238 over RFC 4226): six digits, 30 seconds, HMAC-SHA-1, as authenticators do.

Knows neither users nor clocks.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from urllib.parse import quote, urlencode

STEP_S = 30
DIGITS = 6
SECRET_BYTES = 20
DRIFT_STEPS = 1
"""The number of steps by which a code may be too early or too late (RFC 6238, section 5.2, recommends one)."""


def new_secret() -> bytes:
    """Return a new random secret."""
    return secrets.token_bytes(SECRET_BYTES)


def code_at(secret: bytes, step: int) -> str:
    """Return the code of one time step: RFC 4226's truncation of the HMAC over the step's number."""
    digest = hmac.digest(secret, step.to_bytes(8), "sha1")
    offset = digest[-1] & 0xF
    number = int.from_bytes(digest[offset : offset + 4]) & 0x7FFFFFFF
    return f"{number % 10**DIGITS:0{DIGITS}}"


def matching_step(secret: bytes, code: str, unix_s: float) -> int | None:
    """Return the time step that the code belongs to, now or within the drift, or None for a wrong code.

    unix_s: the present time in Unix seconds.
    """
    now = int(unix_s) // STEP_S
    found = None
    for step in range(now - DRIFT_STEPS, now + DRIFT_STEPS + 1):  # all of them: time must not tell which
        if hmac.compare_digest(code_at(secret, step).encode(), code.encode()):
            found = step
    return found


def base32(secret: bytes) -> str:
    """Return a secret in base32, as people type it into an authenticator."""
    return base64.b32encode(secret).decode()


def provisioning_uri(secret: bytes, email: str, issuer: str = "Lorikeet") -> str:
    """Return the content of the QR code (the Key URI Format of the Google Authenticator wiki).

    issuer: the name that authenticators show beside the e-mail address.
    """
    return f"otpauth://totp/{quote(issuer)}:{quote(email)}?{urlencode({'secret': base32(secret), 'issuer': issuer})}"
