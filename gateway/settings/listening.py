"""Settings of the addresses at which a gateway listens, and of where its metrics and traces go."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import unquote

import msgspec
from msgspec import Meta

from gateway.domain.tracing.sampler import SamplerName

MAX_PORT = 65535
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
HEADER_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")


def comma_parts(text: str) -> list[str]:
    """Return the parts of a text that are separated by commas, without empty ones."""
    return [part.strip() for part in text.split(",") if part.strip()]


class ListeningSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of listening addresses, metrics and traces."""

    host: Annotated[str, Meta(description="Address on which the gateway listens.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65535, description="Port on which the gateway listens.")] = 8080
    public_url: Annotated[
        str,
        Meta(
            description="URL at which clients reach the gateways, e.g. `https://llm.example.com`, where a proxy with "
            "TLS stands in front. An `https` URL allows LORIKEET_HOST to be an address that other machines can reach. "
            "Passkeys belong to its host name: another name makes all of them useless.",
        ),
    ] = ""
    plain_http: Annotated[
        bool,
        Meta(
            description="Permission to speak plain HTTP at an address that other machines can reach: keys, passwords "
            "and content then travel in the clear."
        ),
    ] = False
    metrics_listen: Annotated[
        str,
        Meta(
            description="Address and port of the Prometheus metrics at `/metrics` (`off`: no metrics). The metrics "
            "show what every tenant does, so tenants should not reach this address. The gateways of one `serve` share "
            "the port."
        ),
    ] = "127.0.0.1:9464"
    traces_url: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[^\s@]+)?$",
            description="URL of the collector that gets OpenTelemetry traces by OTLP over HTTP, e.g. "
            "`http://127.0.0.1:4318/v1/traces` (unset: no traces).",
        ),
    ] = ""
    traces_headers: Annotated[
        str | None,
        Meta(
            description="Headers of each message to the collector, e.g. `authorization=Bearer%20KEY`, separated by "
            "commas, values percent-encoded (unset: none)."
        ),
    ] = None
    traces_sampler: Annotated[
        SamplerName,
        Meta(
            description="Choice of the requests that are traced: `always_on`, `always_off`, or `traceidratio` for the "
            "share LORIKEET_TRACES_RATIO of them. With `parentbased_` in front, a request that brings a trace is "
            "traced if its caller is, and the choice is for all others."
        ),
    ] = "parentbased_always_on"
    traces_ratio: Annotated[
        float,
        Meta(ge=0, le=1, description="Share of traces that the samplers with `traceidratio` choose, from 0 to 1."),
    ] = 1.0

    @property
    def base_url(self) -> str:
        """The URL at which this machine reaches the gateway, without a path."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)  # noqa: S104
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """The host and port of metrics_listen; None where it is off.

        Raises ValueError: when the text is no host and port; `load_settings` turns the error into BadSetting.
        """
        if self.metrics_listen == "off":
            return None
        host, _, port = self.metrics_listen.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isascii() or not port.isdigit() or int(port) > MAX_PORT:
            raise ValueError("Expected HOST:PORT, such as 127.0.0.1:9464, or off")
        return host, int(port)

    @property
    def collector_headers(self) -> dict[str, str]:
        """Return the headers that the setting traces_headers names.

        Raises ValueError: when a header is wrong; `load_settings` turns the error into BadSetting.
        """
        headers = {}
        for each in comma_parts(self.traces_headers or ""):
            name, equals, value = each.partition("=")
            value = unquote(value.strip())
            if not equals or HEADER_NAME.fullmatch(name.strip()) is None or HEADER_VALUE.fullmatch(value) is None:
                raise ValueError("Expected NAME=VALUE, separated by commas, values percent-encoded")
            headers[name.strip().lower()] = value
        return headers
