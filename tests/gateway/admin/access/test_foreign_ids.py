"""Ids of another organization's objects in paths, bodies, cursors and lists of the admin API."""

from __future__ import annotations

import time

import httpx
import msgspec
import pytest

from tests.gateway.admin.access.cast import Cast
from tests.gateway.admin.access.foreign import ForeignIds


async def test_other_tenants_ids_answer_as_nonexistent_ones_to_the_byte(cast: Cast, foreign: ForeignIds) -> None:
    """Compare the replies to a foreign and to an unknown id of the same length, each without the id itself."""
    compared = 0
    for route in cast.routes:
        for param in route.params:
            theirs = foreign.admin_key_id if "admin_api_keys" in route.path else getattr(foreign, param, None)
            if theirs is None:
                # Journals and hosts are the whole installation's, versions are numbers under an adapter's name;
                # requests have tests of their own.
                assert param in (
                    "login_id",
                    "host_id",
                    "request_id",
                    "conversation_id",
                    "period",
                    "journal_id",
                    "version",
                    "version_id",
                )
                continue
            nobody = theirs[:-4] + ("aaaa" if theirs[-4:] != "aaaa" else "bbbb")
            for who in ("owner of organization", "owner of acme", "admin_read", "admin_write", "key adapters"):
                replies = []
                for object_id in (theirs, nobody):
                    url = route.at(**({"project_id": cast.project_id} | {param: object_id}))
                    reply = await cast.callers[who].request(route.method, f"{cast.url}{url}", json=route.good_body)
                    replies.append((reply.status_code, reply.content.replace(object_id.encode(), b"ID")))
                assert replies[0] == replies[1], (who, str(route))
                assert replies[0][0] in (400, 403, 404), (who, str(route))
                compared += 1
    assert compared > 150


async def test_other_tenants_ids_take_as_long_as_nonexistent_ones(cast: Cast, foreign: ForeignIds, full: bool) -> None:
    """A request about another tenant's object takes longer than one about nothing with a probability of about a
    half."""
    if not full:
        pytest.skip("measures time: runs with --full")
    caller, told = cast.callers["owner of organization"], {}
    for route in cast.routes:
        for param in route.params:
            theirs = foreign.admin_key_id if "admin_api_keys" in route.path else getattr(foreign, param, None)
            if theirs is None:
                continue
            seconds: dict[str, list[float]] = {theirs: [], theirs[:-4] + "aaaa": []}
            for number in range(400):
                object_id = [*seconds][number % 2]
                url = route.at(**({"project_id": cast.project_id} | {param: object_id}))
                start_s = time.perf_counter()
                await caller.request(route.method, f"{cast.url}{url}", json=route.good_body)
                seconds[object_id].append(time.perf_counter() - start_s)
            longer = sum(mine > other for mine in seconds[theirs] for other in [*seconds.values()][1])
            told[f"{route} {param}"] = longer / 200**2
    print(*(f"{share:.3f} {what}" for what, share in sorted(told.items(), key=lambda item: item[1])), sep="\n")
    assert all(0.35 < share < 0.65 for share in told.values())  # a deviation of 0.15 is five of one such measure


async def test_other_tenants_ids_in_bodies_and_cursors_answer_as_nonexistent_ones(
    foreign: ForeignIds, operator: httpx.AsyncClient, acme: str
) -> None:
    for theirs, send in [
        (foreign.user_id, lambda id: operator.post(f"{acme}/users", json={"user_id": id, "role": "viewer"})),
        (foreign.account_id, lambda id: operator.post(f"{acme}/api_keys", json={"service_account_id": id})),
        (foreign.project_id, lambda id: operator.get("/projects", params={"after": id})),
        (foreign.key_id, lambda id: operator.get(f"{acme}/api_keys", params={"after": id})),
        (foreign.user_id, lambda id: operator.get("/users", params={"after": id})),
        (foreign.account_id, lambda id: operator.get(f"{acme}/service_accounts", params={"after": id})),
        (foreign.admin_key_id, lambda id: operator.get("/admin_api_keys", params={"after": id})),
        (foreign.limit_id, lambda id: operator.get("/limits", params={"after": id})),
        (foreign.limit_id, lambda id: operator.get(f"{acme}/limits", params={"after": id})),
        (foreign.rate_limit_id, lambda id: operator.get(f"{acme}/rate_limits", params={"after": id})),
        (foreign.webhook_id, lambda id: operator.get("/webhooks", params={"after": id})),
        (foreign.alert_id, lambda id: operator.get("/spend_alerts", params={"after": id})),
        (foreign.alert_id, lambda id: operator.get(f"{acme}/spend_alerts", params={"after": id})),
        (foreign.delivery_id, lambda id: operator.get("/deliveries", params={"after": id})),
        (foreign.experiment_id, lambda id: operator.get(f"{acme}/experiments", params={"after": id})),
        (foreign.pool_id, lambda id: operator.get("/pools", params={"after": id})),
        (foreign.replica_id, lambda id: operator.get("/replicas", params={"after": id})),
        (foreign.pool_id, lambda id: operator.get(f"{acme}/models", params={"after": id})),
        (foreign.batch_id, lambda id: operator.get(f"{acme}/batches", params={"after": id})),
        (
            foreign.key_id,
            lambda id: operator.post(
                f"{acme}/limits", json={"unit": "tokens", "window": "day", "max": 1, "api_key_id": id}
            ),
        ),
    ]:
        replies = [
            (reply.status_code, reply.content.replace(id.encode(), b"ID"))
            for id in (theirs, theirs[:-4] + "aaaa")
            for reply in [await send(id)]
        ]
        assert replies[0] == replies[1]
        assert replies[0][0] == 400


async def test_lists_hold_nothing_of_another_organization(
    foreign: ForeignIds, operator: httpx.AsyncClient, acme: str
) -> None:
    everything = ""
    for path in (
        "/projects",
        "/users",
        "/admin_api_keys",
        "/audit_logs",
        "/limits",
        "/webhooks",
        "/deliveries",
        "/pools",
        "/replicas",
    ):
        everything += (await operator.get(path, params={"limit": 100})).text
    for theirs in msgspec.structs.astuple(foreign)[:-2]:
        assert theirs not in everything
