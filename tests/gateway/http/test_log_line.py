"""The one line that a request leaves in the log: its key, its address, and its end user as a digest."""

from __future__ import annotations

import hashlib
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from tests.gateway.conftest import House
from tests.installation.waiting import wait_until
from tests.patience import PATIENCE_S

ANN, BOB = "ann@example.com", "bob"


def digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def log_line_of(house: House, path: str, body: dict[str, Any]) -> dict[str, Any]:
    with capture_logs() as logs:
        reply = httpx.post(
            house.url + path, json=body, headers={"authorization": f"Bearer {house.acme.key}"}, timeout=PATIENCE_S
        )
        assert reply.status_code == 200, reply.text
        request_id = reply.headers["x-request-id"]
        found = wait_until(lambda: [each for each in logs if each.get("request_id") == request_id], "it left no line")
    assert ANN not in repr(logs)
    (only,) = found
    return dict(only)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 1}),
        ("/v1/embeddings", {"input": "x"}),
    ],
)
def test_the_log_line_has_digests_of_the_end_user(house: House, path: str, body: dict[str, Any]) -> None:
    plain = log_line_of(house, path, body | {"model": "tiny"})
    assert "user" not in plain and "safety_identifier" not in plain
    assert log_line_of(house, path, body | {"model": "tiny", "user": ANN})["user"] == digest(ANN)
    if "chat" in path:
        told = log_line_of(house, path, body | {"model": "tiny", "user": ANN, "safety_identifier": BOB})
        assert (told["user"], told["safety_identifier"]) == (digest(ANN), digest(BOB))


def test_the_log_line_names_the_key_and_the_address(house: House) -> None:
    told = log_line_of(house, "/v1/completions", {"model": "tiny", "prompt": "x", "max_tokens": 1})
    assert told["address"] == "127.0.0.1"
    assert told["api_key_id"].startswith("key_") and told["tenant"].startswith("proj_")
