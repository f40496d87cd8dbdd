"""All but a few routes of the application are closed to callers without a right key, whatever the Host header says."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import msgspec
import pytest

from gateway.domain.tenancy.keys import new_key
from gateway.http.server_span import is_of_tenants
from gateway.settings import Settings
from tests.gateway.admin.routes import Route, routes_of
from tests.gateway.conftest import House
from tests.gateway.hostile import FRAGMENTS, HOSTS, RawClient, Reply, hostile_texts, printable

PUBLIC = {
    *("GET /health", "GET /health/live", "GET /health/ready", "GET /health/startup", "GET /version"),
    *("GET /openapi.json", "GET /docs", "GET /docs/style.css"),
    *("GET /", "GET /admin", "GET /admin/{path}"),
    *("GET /admin/v1/login", "POST /admin/v1/login", "POST /admin/v1/hosts/join"),
    *("POST /admin/v1/login/passkey", "POST /admin/v1/login/passkey/confirm"),
}
BY_ID = (
    "{completion_id}",
    "{feedback_id}",
    "{response_id}",
    "{conversation_id}",
    "{file_id}",
    "{upload_id}",
    "{batch_id}",
)
NUM_TEXTS, NUM_TEXTS_FULL = 100, 5000


@pytest.fixture
async def client(house: House) -> AsyncIterator[RawClient]:
    client = RawClient(house.gateway.port)
    yield client
    await client.close()


@pytest.fixture
def routes(house: House) -> list[Route]:
    assert house.gateway.app is not None
    return routes_of(house.gateway.app)


def test_the_public_routes_are_these(routes: list[Route]) -> None:
    undeclared = {str(route) for route in routes if route.access is None and not route.path.startswith("/v1/")}
    of_tenants = {
        "/tokenize",
        "/detokenize",
        "/rerank",
        "/v2/rerank",
        "/ofrep/v1/evaluate/flags",
        "/ofrep/v1/evaluate/flags/{key}",
    }
    assert undeclared - PUBLIC == {f"POST {path}" for path in of_tenants}, "which ask for a tenant's key, as /v1 does"
    assert undeclared >= PUBLIC


def test_what_tenants_use_keys_for_is_traced_and_its_refusals_are_listed(routes: list[Route]) -> None:
    of_tenants = {str(route) for route in routes if route.access is None} - PUBLIC
    assert {str(route) for route in routes if is_of_tenants(route.path)} == of_tenants


def refused(reply: Reply, status: int) -> bool:
    """Tell whether a reply is a refusal with this status, or with 400 for an invalid Host (RFC 9112, section 3.2)."""
    if reply.status == 400 and reply.error["code"] == "invalid_http":
        return True  # refused by the parser, before there is a request
    return reply.status == status or (reply.status == 400 and reply.error["message"] == "Invalid host header")


async def test_no_route_opens_without_a_key_whatever_the_host(
    house: House, client: RawClient, routes: list[Route], full: bool
) -> None:
    assert len(HOSTS) >= 50
    strangers = {"nobody": {}, "a wrong key": {"Authorization": f"Bearer {new_key().secret}"}}
    strangers["a wrong operator's key"] = {"Authorization": f"Bearer {new_key('admin').secret}"}
    strangers["a wrong cookie"] = {"Cookie": "lorikeet_login=" + "x" * 43}
    wrong = []
    for place, route in enumerate(routes):
        if str(route) in PUBLIC:
            continue
        for who, headers in strangers.items():
            # Everybody meets every host on some routes.
            hosts = HOSTS if full else HOSTS[place % 10 :: 10]
            for host in hosts:
                reply = await client.send(route.method, route.at(project_id=house.acme.project_id), headers, host=host)
                if not refused(reply, 401):
                    wrong.append(f"{who} at {host!r}: {route}: {reply}")
    assert wrong == []


async def test_another_tenants_key_opens_nothing_of_a_tenant(
    house: House, client: RawClient, routes: list[Route], full: bool
) -> None:
    headers = {"Authorization": f"Bearer {house.globex.key}"}
    for place, route in enumerate(route for route in routes if "{project_id}" in route.path):
        for host in HOSTS if full else HOSTS[place % 10 :: 10]:
            path = route.at(project_id=house.acme.project_id)
            reply = await client.send(route.method, path, headers, host=host)
            assert refused(reply, 404), (str(route), host)
    model = f"tiny:{house.acme.adapter}".encode()
    for route in routes:
        if route.path.startswith("/v1/") and not route.path.startswith("/v1/organization"):
            path = route.path.replace("{model_id}", model.decode())
            body = b'{"model":"%b","messages":[{"role":"user","content":"x"}]}' % model
            if "chat" not in path:
                field = b'"tokens":[1]' if "detokenize" in path else b'"prompt":"x"'
                body = b'{"model":"%b",%b}' % (
                    model,
                    b'"input":"x"' if "embed" in path or "responses" in path else field,
                )
            if path.startswith("/v1/messages"):
                bound = b"" if "count_tokens" in path else b',"max_tokens":1'
                body = b'{"model":"%b","messages":[{"role":"user","content":"x"}]%b}' % (model, bound)
                reply = await client.send(route.method, path, headers, body)
                assert (reply.status, reply.error["type"]) == (404, "not_found_error"), str(route)
                continue
            if "{completion_id}" in path:
                body = b'{"metadata":{}}'
            if "conversations" in path:
                body = b'{"items":[]}' if "items" in path else b'{"metadata":{}}'
            if "feedback" in path:
                body = b'{"request_id":"req_x","metric":"x","value":true}'
            if "uploads" in path or "files" in path:
                body = b'{"filename":"a.jsonl","purpose":"batch","bytes":1,"mime_type":"x/y"}'
                body = b'{"part_ids":["x"]}' if path.endswith("complete") else body
            if path.endswith("/rerank"):
                body = b'{"model":"%b","query":"x","documents":["x"]}' % model
            if path == "/v1/batches":
                body = b'{"input_file_id":"file_x","endpoint":"/v1/embeddings","completion_window":"24h"}'
            reply = await client.send(route.method, path, headers, body if route.method == "POST" else b"")
            if path == "/v1/models":
                assert model not in reply.body
            elif str(route) == "POST /v1/conversations":
                assert (reply.status, reply.error["code"]) == (400, "store_not_allowed"), "a setting of the project"
            elif str(route) == "POST /v1/feedback":
                assert (reply.status, reply.error["param"]) == (400, "metric"), "metrics are of the project"
            elif str(route) == "POST /v1/files":
                assert (reply.status, reply.error["code"]) == (400, "invalid_content_type"), "which is a form"
            elif str(route) == "POST /v1/batches":
                assert (reply.status, reply.error["param"]) == (400, "input_file_id"), "files are of the project"
            elif str(route) == "POST /v1/uploads":
                assert reply.status == 200, "of the key's own project"
            elif str(route) in ("GET /v1/chat/completions", "GET /v1/feedback", "GET /v1/files", "GET /v1/batches"):
                assert b'"data":[]' in reply.body
            elif any(id in path for id in BY_ID):
                assert (reply.status, reply.error["code"]) == (404, "not_found"), str(route)
            else:
                assert (reply.status, reply.error["code"]) == (404, "model_not_found"), str(route)


async def test_the_host_header_does_not_change_an_answer(house: House, client: RawClient) -> None:
    headers = {"Authorization": f"Bearer {house.acme.key}"}
    usual = await client.send("GET", "/v1/models", headers)
    assert usual.status == 200
    for host in HOSTS:
        for path, status in (("/v1/models", 200), ("/v1/nothing", 404), ("/v1/organization/projects", 403)):
            reply = await client.send("GET", path, headers, host=host)
            assert refused(reply, status), (host, path)
            assert reply.body == usual.body or reply.status != 200
            assert b"evil" not in reply.body, (host, path)


COUNTS = """
    SELECT (SELECT count(*) FROM organizations) AS organizations, (SELECT count(*) FROM projects) AS projects,
           (SELECT count(*) FROM users) AS users, (SELECT count(*) FROM api_keys) AS api_keys,
           (SELECT count(*) FROM logins) AS logins, (SELECT count(*) FROM adapters) AS adapters,
           (SELECT count(*) FROM limits) AS limits, (SELECT count(*) FROM webhooks) AS webhooks,
           (SELECT count(*) FROM audit_log) AS audit_log
"""


async def counts(house: House) -> dict[str, int]:
    conn = await asyncpg.connect(house.dsn)
    try:
        row = await conn.fetchrow(COUNTS)
        assert row is not None
        return dict(row)
    finally:
        await conn.close()


async def test_hostile_texts_are_only_ever_texts(house: House, client: RawClient, full: bool) -> None:
    """Texts go through every header, path, query parameter and field; an accepted text comes back as it was sent."""
    operator = {"Authorization": f"Bearer {house.operator_key}"}
    before, anomalies, created, limited = await counts(house), [], 0, 0
    for number, text in enumerate(hostile_texts(NUM_TEXTS_FULL if full else NUM_TEXTS)):
        for reply, statuses in [
            (await send_in_header(client, text, house), (200, 400, 401, 403)),
            *[
                (reply, (400, 404, 405))
                for reply in await send_in_path(client, text, operator, house, doors(number, full))
            ],
            *[(reply, (200, 400)) for reply in await by_query(client, text, operator, doors(number, full))],
            (await by_webhook(client, text, operator), (400,)),
            (await by_login(client, text, hashed=number % 25 == 0), (400, 401, 429)),
        ]:
            if reply.status not in statuses:
                anomalies.append((text, reply))
        reply = await send_in_name(client, text, operator)
        created += reply.status == 200
        if reply.status == 200 and (found := await search_projects(client, text, operator)) != [text]:
            anomalies.append((text, found))
        elif reply.status not in (200, 400, 409):
            anomalies.append((text, reply))
        if full or number < 50 or number % 3 == 0:
            reply = await by_limit(client, text, operator)
            limited += reply.status == 200
            if reply.status not in (200, 400):
                anomalies.append((text, reply))
    assert anomalies == []
    after = await counts(house)
    audited = created + 2 * limited
    assert after == before | {"projects": before["projects"] + created, "audit_log": before["audit_log"] + audited}


async def send_in_header(client: RawClient, text: str, house: House) -> Reply:
    value = printable(text)
    headers = {
        "Authorization": f"Bearer {value}" if len(text) % 2 else f"Bearer {house.operator_key}",
        "Cookie": f"lorikeet_login={value}; x={value}",
        **dict.fromkeys(("X-Request-Id", "X-Forwarded-For", "X-CSRF-Token", "Origin", "User-Agent", "Accept"), value),
    }
    return await client.send("GET", "/v1/organization/projects", headers)


def doors(number: int, full: bool) -> slice:
    """Return the slice of the ways (doors) that the text with this number is sent through.

    The first texts go through all of them, later ones by turns.

    full: True: every text goes through all of them.
    """
    return slice(None) if full or number < 50 else slice(number % 3, None, 3)


async def send_in_path(
    client: RawClient, text: str, operator: dict[str, str], house: House, through: slice
) -> list[Reply]:
    quoted = "".join(f"%{byte:02x}" for byte in text.encode())
    tenant = {"Authorization": f"Bearer {house.acme.key}"}
    places = [
        (f"/v1/organization/projects/x{quoted}", operator),
        (f"/v1/organization/users/x{quoted}/logins", operator),
        (f"/v1/organization/projects/x{quoted}/limits", operator),
        (f"/v1/models/x{quoted}", tenant),
    ]
    return [await client.send("GET", place, headers) for place, headers in places[through]]


async def by_query(client: RawClient, text: str, operator: dict[str, str], through: slice) -> list[Reply]:
    """Send a text in query parameters: searches must find nothing, and other queries must be refused."""
    quoted = "".join(f"%{byte:02x}" for byte in text.encode())
    audit = f"event_types%5B%5D=x{quoted}&actor_emails%5B%5D={quoted}&resource_ids%5B%5D={quoted}"
    finding = [f"projects?name=x{quoted}", f"users?email=x{quoted}&limit=1", f"audit_logs?{audit}"]
    refused = [
        f"projects?after=x{quoted}",
        f"limits?after=x{quoted}",
        f"projects?limit=x{quoted}",
        f"projects?x{quoted}=1",
    ]
    replies = []
    for query in [*finding[through], *refused[through]]:
        reply = await client.send("GET", f"/v1/organization/{query}", operator)
        assert reply.status == 400 or (query in finding and b'"data":[]' in reply.body), (text, reply)
        replies.append(reply)
    return replies


async def by_login(client: RawClient, text: str, *, hashed: bool) -> Reply:
    """Send a text to the login route.

    hashed: True: the request is well-formed, so that the password is hashed, which takes long.
    """
    body = {"email": f"{text}@example.com", "password": text} | ({} if hashed else {"code": f"{text} is no code"})
    return await client.send("POST", "/admin/v1/login", body=msgspec.json.encode(body))


async def by_webhook(client: RawClient, text: str, operator: dict[str, str]) -> Reply:
    """Send a text as a webhook's address, whose scheme is not HTTP whatever the text is."""
    body = msgspec.json.encode({"url": f"gopher://{text}"})
    return await client.send("POST", "/v1/organization/webhooks", operator, body)


async def by_limit(client: RawClient, text: str, operator: dict[str, str]) -> Reply:
    """Set a limit for a model of this name, and remove the limit again."""
    wanted = {"unit": "requests", "window": "day", "max": 1, "hard": False, "model": text}
    reply = await client.send("POST", "/v1/organization/limits", operator, msgspec.json.encode(wanted))
    if reply.status == 200:
        limit = msgspec.json.decode(reply.body)
        assert limit["model"] == text
        gone = await client.send("DELETE", f"/v1/organization/limits/{limit['id']}", operator)
        assert gone.status == 200, (text, gone)
    return reply


async def send_in_name(client: RawClient, text: str, operator: dict[str, str]) -> Reply:
    return await client.send("POST", "/v1/organization/projects", operator, msgspec.json.encode({"name": text}))


async def search_projects(client: RawClient, text: str, operator: dict[str, str]) -> list[str]:
    quoted = "".join(f"%{byte:02x}" for byte in text.encode())
    reply = await client.send("GET", f"/v1/organization/projects?name={quoted}", operator)
    return [project["name"] for project in msgspec.json.decode(reply.body)["data"]]


def test_the_texts_are_many_and_the_same_every_time() -> None:
    assert hostile_texts(NUM_TEXTS) == hostile_texts(NUM_TEXTS)
    assert len(set(hostile_texts(NUM_TEXTS_FULL))) > 0.85 * NUM_TEXTS_FULL
    assert len(FRAGMENTS) > 70


@pytest.mark.parametrize(
    ("origin", "listed"),
    [
        ("https://app.example.com", True),
        ("https://other.example.com:8443", True),
        ("https://other.example.com", False),
        ("http://app.example.com", False),
        ("https://app.example.com.evil.com", False),
        ("https://appXexample.com", False),
        ("null", False),
        ("*", False),
    ],
)
async def test_only_listed_origins_may_call(house: House, client: RawClient, origin: str, listed: bool) -> None:
    headers = {"Authorization": f"Bearer {house.acme.key}", "Origin": origin}
    asking = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    for reply in (await client.send("GET", "/v1/models", headers), await client.send("OPTIONS", "/v1/models", asking)):
        assert reply.headers.get("access-control-allow-origin") == (origin if listed else None)
        assert reply.headers.get("access-control-allow-credentials") != "true"


def test_by_default_no_origin_may_call() -> None:
    assert Settings().allowed_origins == []
