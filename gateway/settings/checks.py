"""Checks of settings beyond the type and bounds of each: names, addresses, sources, keys and URLs."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from engine.config import EngineConfig
from engine.config.endpoint import BadEndpoint, check_endpoint
from gateway.domain.adapters.sources import WrongSource, parse_place
from gateway.domain.content.keys import BadContentKey, parse_keys
from gateway.settings.model import MODEL_NAME_PATTERN
from gateway.settings.settings import Settings

ORIGIN = re.compile(r"https?://[A-Za-z0-9.-]+(:\d{1,5})?|https?://\[[0-9A-Fa-f:.]+\](:\d{1,5})?")


class BadSetting(ValueError):
    """The error for an unknown or wrong environment variable; the message is one line that names it."""


def check(settings: Settings) -> None:
    """Check all settings. Raises BadSetting: for the first setting that does not fit."""
    _check_model_name(settings)
    _check_engine_endpoint(settings.engine)
    _check_metrics_listen(settings)
    _check_public_url(settings.public_url)
    _check_ports(settings)
    _check_networks(settings)
    _check_origins(settings)
    _check_adapter_places(settings)
    _check_collector_headers(settings)
    _check_content_key(settings)
    if settings.database_url is not None:
        _check_database_url("DATABASE_URL", settings.database_url)
    if settings.database_owner_url is not None:
        if settings.database_url is None:
            raise BadSetting("LORIKEET_DATABASE_OWNER_URL: needs DATABASE_URL, the same database's for gateways")
        _check_database_url("LORIKEET_DATABASE_OWNER_URL", settings.database_owner_url)


def _check_public_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_good = not url or (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.username is None
            and parts.path in ("", "/")
            and not parts.query + parts.fragment
            and not any(map(str.isspace, url))
            and parts.port != 0  # a port beyond 65535 raises ValueError
        )
    except ValueError:
        is_good = False
    if not is_good:
        raise BadSetting(
            f"LORIKEET_PUBLIC_URL={url!r}: is no http or https URL of a host, without a path, such as "
            "https://llm.example.com or https://llm.example.com:8443"
        )


def _check_model_name(settings: Settings) -> None:
    if re.fullmatch(MODEL_NAME_PATTERN, settings.model_name) is None:
        raise BadSetting(
            f"LORIKEET_MODEL={settings.model!r}: the name {settings.model_name!r} cannot be a model's id, which is not "
            "empty and has no colon and no space; choose a name with LORIKEET_MODEL_NAME"
        )


def _check_engine_endpoint(engine: EngineConfig) -> None:
    try:
        check_endpoint(engine.endpoint, is_open=engine.open_endpoint)
    except BadEndpoint as error:
        raise BadSetting(f"LORIKEET_ENGINE_ENDPOINT={engine.endpoint!r}: {error}") from None


def _check_metrics_listen(settings: Settings) -> None:
    try:
        _ = settings.metrics_address
    except ValueError as error:
        raise BadSetting(f"LORIKEET_METRICS_LISTEN={settings.metrics_listen!r}: {error}") from None


def _check_ports(settings: Settings) -> None:
    try:
        _ = settings.engine_ports
    except ValueError as error:
        raise BadSetting(f"LORIKEET_LINK_PORTS={settings.link_ports!r}: {error}") from None


def _check_networks(settings: Settings) -> None:
    try:
        _ = settings.trusted_networks
    except ValueError as error:
        raise BadSetting(f"LORIKEET_TRUSTED_PROXIES={settings.trusted_proxies!r}: {error}") from None


def _check_origins(settings: Settings) -> None:
    for origin in settings.allowed_origins:
        if ORIGIN.fullmatch(origin) is None:
            raise BadSetting(
                f"LORIKEET_CORS_ORIGINS={settings.cors_origins!r}: Expected origins such as https://app.example.com, "
                f"without a path and without wildcards, separated by commas; {origin!r} is none"
            )


def _check_adapter_places(settings: Settings) -> None:
    for place in filter(None, map(str.strip, settings.adapter_sources.split(","))):
        try:
            parse_place(place)
        except WrongSource as error:
            raise BadSetting(f"LORIKEET_ADAPTER_SOURCES: {place!r} is no source: {error}") from None
    if "://" in settings.engine.adapter_store:
        try:
            is_bucket = parse_place(settings.engine.adapter_store).scheme == "s3"
        except WrongSource:
            is_bucket = False
        if not is_bucket:
            raise BadSetting(
                f"LORIKEET_ADAPTER_STORE={settings.engine.adapter_store!r}: Expected a folder, or s3://BUCKET/PREFIX"
            )


def _check_collector_headers(settings: Settings) -> None:
    """Check the form of the headers. The error never shows the text, which may hold a key."""
    try:
        _ = settings.collector_headers
    except ValueError as error:
        raise BadSetting(f"LORIKEET_TRACES_HEADERS: {error}") from None


def _check_content_key(settings: Settings) -> None:
    try:
        if settings.content_key is not None:
            parse_keys(settings.content_key)
    except BadContentKey as error:
        raise BadSetting(f"LORIKEET_CONTENT_KEY: {error}") from None


def _check_database_url(name: str, url: str) -> None:
    """Check the form of the URL. The error never shows the text, which holds a password."""
    try:
        parts = urlsplit(url)
        hosts = parts.netloc.rpartition("@")[2].split(",")
        well_formed = parts.scheme in ("postgres", "postgresql") and all(urlsplit(f"//{it}").port != 0 for it in hosts)
    except ValueError:  # a port that is no number, or brackets that do not close
        well_formed = False
    if not well_formed:
        raise BadSetting(
            f"{name}: Expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with special characters percent-encoded"
        )
