"""Settings of clients: the proxies in front of them, their logins, and how long a gateway waits for them."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from msgspec import Meta

from engine.config import Count
from gateway.settings.listening import comma_parts
from gateway.settings.storage import StorageSettings


class ClientSettings(StorageSettings, frozen=True, kw_only=True):
    """The settings of `StorageSettings`, and those of clients and connections."""

    trusted_proxies: Annotated[
        str,
        Meta(
            description="Networks of reverse proxies whose header X-Forwarded-For is trusted, e.g. `10.0.0.0/8, ::1` "
            "(unset: none)."
        ),
    ] = ""
    cors_origins: Annotated[
        str,
        Meta(
            description="Origins of web pages that may call the API (CORS), e.g. `https://app.example.com` (unset: "
            "none)."
        ),
    ] = ""
    max_failed_keys: Annotated[
        Count,
        Meta(
            description="Wrong keys and passwords that one address may send to each gateway in a minute before the "
            "gateway refuses the address for a while (0: no limit)."
        ),
    ] = 100
    login_idle_minutes: Annotated[
        float,
        Meta(
            ge=0,
            le=60 * 24,
            description="Minutes after which a login of a person that is not used ends (0: never; logins end 12 hours "
            "after their start in any case). A page of the dashboard that is open uses its login.",
        ),
    ] = 60.0
    require_totp: Annotated[
        Literal["nobody", "owners", "everybody"],
        Meta(
            description="People who need a second factor: `nobody`, `owners` of the organization, or `everybody`. "
            "Such a person logs in with a passkey, or with a password and an authenticator's code; with a password "
            "alone they can do nothing but set one of these up."
        ),
    ] = "nobody"
    max_connections_per_address: Annotated[
        Count, Meta(description="Connections that one address may have open to each gateway (0: no limit per address).")
    ] = 128
    unread_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=86400,
            description="Seconds for which a client may leave a reply unread; then the connection is closed and the "
            "request is aborted.",
        ),
    ] = 60.0
    head_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description="Seconds that the headers of a request may take, counted from the opening of the connection "
            "for its first request and from the first byte for later requests; then the connection is closed (408).",
        ),
    ] = 10.0
    body_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=86400,
            description="Seconds for which the body of a request may make no progress before the request is refused "
            "(408). Each KiB that arrives allows one second more, up to this number.",
        ),
    ] = 60.0
    private_webhooks: Annotated[
        bool,
        Meta(
            description="Permission for webhooks, object stores and sources of adapters at private addresses, such as "
            "127.0.0.1."
        ),
    ] = False
    drain_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=86400,
            description="Seconds that running requests get to finish before their gateway is stopped.",
        ),
    ] = 30.0
    lame_duck_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="Seconds for which a gateway that is told to stop still takes requests, before the drain: "
            "`/health/ready` answers 503 and replies end their connections, so that a balancer in front sends requests "
            "elsewhere. Choose some more than the balancer takes to notice; 0 without a balancer.",
        ),
    ] = 0.0

    @property
    def trusted_networks(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        """The networks of trusted_proxies.

        Raises ValueError: when a text is no network; `load_settings` turns the error into BadSetting.
        """
        return tuple(ipaddress.ip_network(text) for text in comma_parts(self.trusted_proxies))

    @property
    def allowed_origins(self) -> list[str]:
        """The origins whose pages may call the API."""
        return comma_parts(self.cors_origins)
