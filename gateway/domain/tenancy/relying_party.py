"""The name under which passkeys are made and asked for: WebAuthn's relying party.

A passkey belongs to one host name for ever, and browsers use it at pages of that host alone. Knows no settings.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

import msgspec

DEFAULT_PORTS = {"http": 80, "https": 443}


class RelyingParty(msgspec.Struct, frozen=True):
    """The server as browsers and authenticators see it."""

    id: str
    """The host name that passkeys are bound to."""
    origin: str
    """Scheme, host and port of the dashboard, as browsers write them."""


def relying_party(public_url: str, port: int) -> RelyingParty | None:
    """Return the relying party of a server; None where browsers have no passkeys.

    Browsers have none for bare IP addresses, nor over plain HTTP but for this machine's own `localhost`.

    public_url: the URL at which clients reach the server; an empty one means http://localhost at this port.
    """
    parts = urlsplit(public_url or f"http://localhost:{port}")
    host = _ascii(parts.hostname or "")
    is_own_machine = host == "localhost" or host.endswith(".localhost")
    if not host or _is_address(host) or not (parts.scheme == "https" or is_own_machine):
        return None
    default = parts.port is None or parts.port == DEFAULT_PORTS[parts.scheme]
    return RelyingParty(host, f"{parts.scheme}://{host}" + ("" if default else f":{parts.port}"))


def _ascii(host: str) -> str:
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        return ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
