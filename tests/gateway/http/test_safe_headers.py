"""Every reply tells browsers and caches to store nothing, to guess no type and to show nothing in a frame."""

from __future__ import annotations

import httpx
import pytest

from tests.gateway.conftest import House
from tests.patience import PATIENCE_S

REQUESTS = [
    ("GET", "/v1/models", 200),
    ("POST", "/v1/completions", 200),
    ("GET", "/v1/organization/projects", 200),
    ("GET", "/v1/organization/audit_logs", 200),
    ("GET", "/v1/nothing/here", 404),
    ("DELETE", "/v1/models", 405),
    ("GET", "/admin/v1/session", 403),
    ("GET", "/health", 200),
    ("GET", "/openapi.json", 200),
    ("GET", "/docs", 200),
    ("GET", "/docs/style.css", 200),
    ("GET", "/", 302),
    ("GET", "/admin/", 200),
]
FILES = ("/docs/style.css", "/", "/admin/")
"""The public files that browsers may cache but have to revalidate each time."""


@pytest.mark.parametrize(
    ("method", "path", "status"), REQUESTS, ids=[f"{method} {path}" for method, path, _ in REQUESTS]
)
def test_every_reply_forbids_storing_and_framing(house: House, method: str, path: str, status: int) -> None:
    is_admin = "organization" in path or path.startswith("/admin")
    key = house.operator_key if is_admin else house.acme.key
    body = {"model": "tiny", "prompt": "x", "max_tokens": 1} if method == "POST" else None
    reply = httpx.request(
        method, house.url + path, json=body, headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE_S
    )
    assert reply.status_code == status, reply.text
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["referrer-policy"] == "no-referrer"
    assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]
    assert reply.headers["cache-control"] == ("no-cache" if path in FILES else "no-store")
    for name in ("x-content-type-options", "referrer-policy", "content-security-policy", "cache-control"):
        assert len(reply.headers.get_list(name)) == 1, name


def test_a_stream_forbids_storing(house: House) -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 1, "stream": True}
    headers = {"authorization": f"Bearer {house.acme.key}"}
    reply = httpx.post(f"{house.url}/v1/completions", json=body, headers=headers, timeout=PATIENCE_S)
    assert (reply.status_code, reply.headers["cache-control"]) == (200, "no-store")
    assert reply.headers["x-content-type-options"] == "nosniff"
