"""Passkeys belong to the host name at which browsers reach the server, where browsers have passkeys at all."""

from __future__ import annotations

import pytest

from gateway.domain.tenancy.relying_party import RelyingParty, relying_party


@pytest.mark.parametrize(
    ("public_url", "host", "origin"),
    [
        ("https://llm.example.com", "llm.example.com", "https://llm.example.com"),
        ("https://LLM.example.com:443/", "llm.example.com", "https://llm.example.com"),
        ("https://llm.example.com:8443", "llm.example.com", "https://llm.example.com:8443"),
        ("https://bücher.example", "xn--bcher-kva.example", "https://xn--bcher-kva.example"),
        ("http://localhost:80", "localhost", "http://localhost"),
        ("http://llm.localhost:8080", "llm.localhost", "http://llm.localhost:8080"),
        ("", "localhost", "http://localhost:8080"),
    ],
)
def test_the_relying_partys_name_is_the_host_of_the_public_url(public_url: str, host: str, origin: str) -> None:
    assert relying_party(public_url, 8080) == RelyingParty(host, origin)


@pytest.mark.parametrize(
    "public_url",
    ["http://llm.example.com", "https://192.0.2.7", "https://[2001:db8::1]:8443", f"https://{'x' * 64}.com"],
)
def test_there_is_no_relying_party_where_browsers_have_no_passkeys(public_url: str) -> None:
    assert relying_party(public_url, 8080) is None
