"""The check that no keys, passwords or data of the database travel in the clear to or from other machines.

Made where a server starts, and not where settings are read: clients read the same variables.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

from gateway.settings import BadSetting, Settings

PG_SSLMODE = "PGSSLMODE"
"""PostgreSQL's own variable for the mode of TLS."""


def check_transport(settings: Settings, environ: Mapping[str, str]) -> None:
    """Check that nothing secret crosses a network without TLS, unless the operator allows it by name.

    Raises BadSetting: when a secret would, and no setting allows it.
    """
    is_behind_tls = settings.public_url.startswith("https://")
    if not is_local(settings.host) and not is_behind_tls and not settings.plain_http:
        raise BadSetting(
            f"LORIKEET_HOST={settings.host!r}: the server speaks plain HTTP, and other machines could reach it there. "
            "Put a proxy with TLS in front and set LORIKEET_PUBLIC_URL=https://..., or allow it with "
            "LORIKEET_PLAIN_HTTP=true"
        )
    for name, url in (
        ("DATABASE_URL", settings.database_url),
        ("LORIKEET_DATABASE_OWNER_URL", settings.database_owner_url),
    ):
        if url is not None:
            _check_database(name, url, environ)


def is_local(host: str) -> bool:
    """Tell whether a host's name or address is this machine's loopback."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_database(name: str, url: str, environ: Mapping[str, str]) -> None:
    """Check the mode of TLS of a database on another machine; the message never shows the URL, which has a password."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    if "sslmode" in query or environ.get(PG_SSLMODE):
        return
    named = [urlsplit(f"//{part}").hostname or "" for part in parts.netloc.rpartition("@")[2].split(",")]
    hosts = [host for host in (*named, *query.get("host", "").split(",")) if host]
    if not all(host.startswith("/") or is_local(host) for host in hosts):
        raise BadSetting(
            f"{name}: the database is on another machine: say how the connection is protected, with "
            "sslmode=verify-full, or with another sslmode where the network is protected otherwise"
        )
