"""Limits and webhooks over the admin API: idempotent, within one organization, every wrong field named."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.gateway.admin_server import AdminServer
from tests.patience import PATIENCE_S

LIMIT = {"unit": "tokens", "window": "day", "max": 100}


async def test_a_limit_of_the_same_kind_gets_the_new_maximum(operator: httpx.AsyncClient, acme: str) -> None:
    first = (await operator.post(f"{acme}/limits", json=LIMIT)).json()
    second = (await operator.post(f"{acme}/limits", json={**LIMIT, "max": 7})).json()
    assert second == first | {"max": 7, "free": 7}
    assert (first["scope"], first["used"], first["reserved"], first["free"]) == ("project", 0, 0, 100)
    others = [{"model": "tiny"}, {"window": "month"}, {"hard": False}, {"unit": "requests"}]
    ids = {(await operator.post(f"{acme}/limits", json=LIMIT | other)).json()["id"] for other in others}
    listed = (await operator.get(f"{acme}/limits", params={"limit": "3"})).json()
    assert (len(listed["data"]), listed["has_more"]) == (3, True)
    rest = (await operator.get(f"{acme}/limits", params={"after": listed["last_id"]})).json()["data"]
    assert {each["id"] for each in listed["data"] + rest} == ids | {first["id"]}
    removed = await operator.delete(f"{acme}/limits/{first['id']}")
    assert removed.json() == {"id": first["id"], "deleted": True, "object": "organization.limit.deleted"}
    assert (await operator.delete(f"{acme}/limits/{first['id']}")).status_code == 404


async def test_limits_per_window_alert_and_others_do_not(operator: httpx.AsyncClient, acme: str) -> None:
    kinds = [("tokens", "day"), ("tokens", "none"), ("concurrency", "none"), ("storage_bytes", "none")]
    made = [
        (await operator.post(f"{acme}/limits", json={"unit": unit, "window": window, "max": 1})).json()
        for unit, window in kinds
    ]
    assert [each["alert_percents"] for each in made] == [[80, 100], [], [], []]


async def test_the_organization_has_limits_of_its_own(operator: httpx.AsyncClient, acme: str) -> None:
    made = (await operator.post("/limits", json=LIMIT)).json()
    assert (made["scope"], made["project_id"]) == ("organization", None)
    assert (await operator.get(f"{acme}/limits")).json()["data"] == []
    assert (await operator.delete(f"{acme}/limits/{made['id']}")).status_code == 404
    assert (await operator.delete(f"/limits/{made['id']}")).status_code == 200


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"unit": "bananas"}, "unit"),
        ({"max": -1}, "max"),
        ({"max": 2**63}, "max"),
        ({"window": "week"}, "window"),
        ({"window": "none", "unit": "requests"}, "window"),
        ({"window": "day", "unit": "concurrency"}, "window"),
        ({"window": "none", "hard": False}, "window"),
        ({"window": "none", "unit": "storage_bytes", "hard": False}, "hard"),
        ({"window": "none", "unit": "concurrency", "alert_percents": [80]}, "alert_percents"),
        ({"alert_percents": [0]}, "alert_percents[0]"),
        ({"model": "a\0"}, "model"),
        ({"api_key_id": "key_of_nobody"}, "api_key_id"),
        ({"api_key_id": "a\0"}, "api_key_id"),
        ({"project_id": "proj_x"}, "project_id"),
    ],
)
async def test_a_wrong_field_of_a_limit_is_named(
    operator: httpx.AsyncClient, acme: str, change: dict[str, Any], param: str
) -> None:
    reply = await operator.post(f"{acme}/limits", json=LIMIT | change)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text


async def test_another_organization_sees_nothing_of_limits_and_webhooks(
    server: AdminServer, operator: httpx.AsyncClient, acme: str
) -> None:
    made = (await operator.post(f"{acme}/limits", json=LIMIT)).json()
    hook = (await operator.post("/webhooks", json={"url": "https://example.com/hook"})).json()
    key = await server.admin_key("admin_read", "admin_write", organization="other")
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        base_url=f"{server.url}/v1/organization", headers=headers, timeout=PATIENCE_S
    ) as other:
        for path in (f"{acme}/limits", f"{acme}/rate_limits"):
            theirs, nobodys = await other.get(path), await other.get(path.replace(acme, "/projects/proj_none"))
            assert theirs.status_code == nobodys.status_code == 404
        assert (await other.post(f"{acme}/limits", json=LIMIT)).status_code == 404
        assert (await other.delete(f"{acme}/limits/{made['id']}")).status_code == 404
        assert (await other.delete(f"/limits/{made['id']}")).status_code == 404
        assert (await other.delete(f"/webhooks/{hook['id']}")).status_code == 404
        assert (await other.get("/webhooks")).json()["data"] == []
    assert len((await operator.get(f"{acme}/limits")).json()["data"]) == 1


async def test_rate_limits_have_openais_shape(operator: httpx.AsyncClient, acme: str) -> None:
    (listed,) = (await operator.get(f"{acme}/rate_limits")).json()["data"]
    assert (listed["object"], listed["id"], listed["model"]) == ("project.rate_limit", "rl-tiny", "tiny")
    path = f"{acme}/rate_limits/rl-tiny"
    changed = await operator.post(path, json={"max_requests_per_1_minute": 500, "max_tokens_per_1_minute": 9})
    assert changed.json() == listed | {"max_requests_per_1_minute": 500, "max_tokens_per_1_minute": 9}
    cleared = await operator.post(path, json={"max_requests_per_1_minute": None, "max_requests_per_1_day": 3})
    assert cleared.json() == listed | {"max_tokens_per_1_minute": 9, "max_requests_per_1_day": 3}
    limits = (await operator.get(f"{acme}/limits")).json()["data"]
    assert {(each["unit"], each["window"], each["max"]) for each in limits} == {
        ("tokens", "minute", 9),
        ("requests", "day", 3),
    }
    assert (await operator.post(f"{acme}/rate_limits/rl-none", json={})).status_code == 404
    wrong = await operator.post(path, json={"max_images_per_1_minute": 1})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "max_images_per_1_minute")


SPEND = {"threshold_amount": 1250, "currency": "USD", "interval": "month"}


@pytest.mark.parametrize("of", ["project", "organization"])
async def test_spend_limits_have_openais_shape(operator: httpx.AsyncClient, acme: str, of: str) -> None:
    base = acme if of == "project" else ""
    assert (await operator.get(f"{base}/spend_limit")).status_code == 404
    made = (await operator.post(f"{base}/spend_limit", json=SPEND)).json()
    assert made == SPEND | {"object": f"{of}.spend_limit", "enforcement": {"status": "inactive"}}
    (limit,) = (await operator.get(f"{base}/limits")).json()["data"]
    assert (limit["unit"], limit["window"], limit["max"], limit["hard"]) == (
        "cost_nanos",
        "month",
        12_500_000_000,
        True,
    )
    await operator.post(
        f"{base}/limits", json={"unit": "cost_nanos", "window": "month", "max": 1, "alert_percents": [7]}
    )
    await operator.post(f"{base}/spend_limit", json=SPEND | {"threshold_amount": 2})
    (limit,) = (await operator.get(f"{base}/limits")).json()["data"]
    assert (limit["max"], limit["alert_percents"]) == (20_000_000, [7])
    assert (await operator.get(f"{base}/spend_limit")).json()["threshold_amount"] == 2
    for field, value in (("threshold_amount", 0), ("currency", "EUR"), ("interval", "day")):
        wrong = await operator.post(f"{base}/spend_limit", json=SPEND | {field: value})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, field)
    assert (await operator.delete(f"{base}/spend_limit")).json() == {
        "object": f"{of}.spend_limit.deleted",
        "deleted": True,
    }
    assert (await operator.delete(f"{base}/spend_limit")).status_code == 404


@pytest.mark.parametrize("of", ["project", "organization"])
async def test_spend_alerts_have_openais_shape(operator: httpx.AsyncClient, acme: str, of: str) -> None:
    path = f"{acme if of == 'project' else ''}/spend_alerts"
    body = SPEND | {"notification_channel": {"type": "webhook"}}
    made = (await operator.post(path, json=body)).json()
    assert made == body | {"id": made["id"], "object": f"{of}.spend_alert"}
    assert (await operator.get(path)).json()["data"] == [made]
    assert (await operator.get(path, params={"after": made["id"]})).json()["data"] == []
    assert (await operator.post(path, json=body)).status_code == 409, "there is one at most"
    changed = await operator.post(f"{path}/{made['id']}", json=body | {"threshold_amount": 3})
    assert changed.json() == made | {"threshold_amount": 3} == (await operator.get(f"{path}/{made['id']}")).json()
    (limit,) = (await operator.get(path.replace("spend_alerts", "limits"))).json()["data"]
    assert (limit["max"], limit["hard"], limit["alert_percents"]) == (30_000_000, False, [100])
    mail = {"notification_channel": {"type": "email", "recipients": ["finance@example.com"]}}
    refused = await operator.post(path, json=body | mail)
    assert (refused.status_code, refused.json()["error"]["param"][:20]) == (400, "notification_channel")
    other = (await operator.post(path.replace("spend_alerts", "limits"), json=LIMIT)).json()
    for method, alert_id in (("GET", "none"), ("DELETE", "none"), ("DELETE", other["id"])):
        assert (await operator.request(method, f"{path}/{alert_id}")).status_code == 404
    gone = await operator.delete(f"{path}/{made['id']}")
    assert gone.json() == {"id": made["id"], "object": f"{of}.spend_alert.deleted", "deleted": True}
    assert (await operator.get(path)).json()["data"] == []


async def test_a_webhooks_secret_is_shown_once(operator: httpx.AsyncClient) -> None:
    made = (await operator.post("/webhooks", json={"url": "https://example.com/hook"})).json()
    assert made["secret"].startswith("whsec_")
    (listed,) = (await operator.get("/webhooks")).json()["data"]
    assert listed == {field: value for field, value in made.items() if field != "secret"}
    assert (listed["last_delivered_at"], listed["last_failed_at"], listed["last_error"]) == (None, None, None)
    wrong = ["ftp://example.com", "no url", "https://user:pass@example.com/", "http://", "http://xn--a/"]
    wrong += ["https://example.com:0/", "https://example.com:70000/", "http://localhost/", "http://127.0.0.1:8399/h"]
    wrong += ["http://10.0.0.1/", "http://169.254.169.254/", "http://[::1]/", "http://0x7f000001/", "http://127.1/"]
    for url in wrong:
        reply = await operator.post("/webhooks", json={"url": url})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "url")
    assert made["events"] == ["limit.threshold_reached", "experiment.paused"]
    for events in ([], ["response.created"], "response.completed"):
        reply = await operator.post("/webhooks", json={"url": "https://example.com/hook", "events": events})
        assert (reply.status_code, reply.json()["error"]["param"].partition("[")[0]) == (400, "events")
    assert (await operator.delete(f"/webhooks/{made['id']}")).status_code == 200
    assert (await operator.get("/webhooks")).json()["data"] == []
