"""The OpenAPI document describes every route, and describes it rightly."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
import pytest

from gateway.reference.openapi import document
from gateway.reference.openapi.tags import tag_of
from tests.gateway.admin.routes import Route, routes_of
from tests.gateway.conftest import House
from tests.gateway.hostile import RawClient


@pytest.fixture
def routes(house: House) -> list[Route]:
    assert house.gateway.app is not None
    return [route for route in routes_of(house.gateway.app) if route.is_documented]


@pytest.fixture(scope="module")
def described(house: House) -> dict[str, Any]:
    assert house.gateway.app is not None
    return document(house.gateway.app)


def operation(described: dict[str, Any], route: Route) -> dict[str, Any]:
    found: dict[str, Any] = described["paths"][route.path][route.method.lower()]
    return found


def refs(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from ([value["$ref"]] if "$ref" in value else [])
        for each in value.values():
            yield from refs(each)
    elif isinstance(value, list):
        for each in value:
            yield from refs(each)


def test_every_route_is_there_and_no_other(described: dict[str, Any], routes: list[Route]) -> None:
    told = {f"{method.upper()} {path}" for path, methods in described["paths"].items() for method in methods}
    assert told == {str(route) for route in routes if route.method != "HEAD"}


def test_operations_have_names_of_their_own(described: dict[str, Any]) -> None:
    names = [each["operationId"] for methods in described["paths"].values() for each in methods.values()]
    assert len(names) == len(set(names))


def test_every_reference_leads_somewhere(described: dict[str, Any]) -> None:
    known = {f"#/components/{kind}/{name}" for kind, found in described["components"].items() for name in found}
    assert set(refs(described)) <= known


def operations(described: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for methods in described["paths"].values():
        yield from methods.values()


def test_every_operation_has_a_place_in_the_index(described: dict[str, Any]) -> None:
    indexed = [name for group in described["x-tagGroups"] for name in group["tags"]]
    assert len(indexed) == len(set(indexed))
    assert {name for each in operations(described) for name in each["tags"]} == set(indexed)


LET_SOMEBODY_IN = ("log_in", "begin_passkey_login", "log_in_by_passkey", "join_host")


def test_every_failure_has_the_shape_of_an_error_and_the_id_of_its_request(described: dict[str, Any]) -> None:
    for response in described["components"]["responses"].values():
        assert response["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorBody")
        assert "x-request-id" in response["headers"]
    for each in operations(described):
        assert {"200", "400", "429", "431", "500"} <= set(each["responses"]), each["operationId"]
        assert ("401" in each["responses"]) == (each["security"] != [] or each["operationId"] in LET_SOMEBODY_IN)


def test_what_costs_money_streams_limits_and_takes_an_idempotency_key(described: dict[str, Any]) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/rerank"):
        post = described["paths"][path]["post"]
        assert "Idempotency-Key" in [each["name"] for each in post["parameters"]]
        assert "x-ratelimit-remaining-tokens" in post["responses"]["200"]["headers"]
        assert {"401", "403", "404", "409", "413", "429", "502", "503"} <= set(post["responses"])


def test_a_stream_is_described_event_by_event(described: dict[str, Any]) -> None:
    def events(path: str) -> dict[str, str]:
        """Return the name of each event's schema by the event's name, or by the schema's own where events have no
        names."""
        content = described["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"]
        found = {}
        for each in content["schema"]["anyOf"]:
            name, data = each["properties"].get("event", {}).get("const", ""), each["properties"]["data"]
            schema = data.get("contentSchema", {}).get("$ref", "").rpartition("/")[2]
            found[name or data.get("const", schema)] = schema
        return found

    assert events("/v1/chat/completions") == {"ChatChunk": "ChatChunk", "ErrorBody": "ErrorBody", "[DONE]": ""}
    responses = events("/v1/responses")
    assert responses["response.output_text.delta"].endswith("TextDelta")
    assert responses["[DONE]"] == "" and len(responses) == 20
    messages = events("/v1/messages")
    assert messages["message_start"] == "MessageStart" and "error" in messages and "[DONE]" not in messages


def test_what_replies_always_hold_is_required_and_what_requests_may_leave_out_is_not(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    assert {"id", "object", "choices", "usage", "service_tier"} <= set(schemas["ChatCompletion"]["required"])
    assert "usage" not in schemas["ChatChunk"]["required"]
    assert schemas["ChatDelta"]["required"] == []
    assert set(schemas["ChatCompletionRequest"]["required"]) == {"model", "messages"}


def test_every_example_is_what_its_schema_says(described: dict[str, Any]) -> None:
    found = 0
    for each in operations(described):
        contents = [each.get("requestBody", {}), each["responses"]["200"]]
        for content in [content.get("content", {}).get("application/json", {}) for content in contents]:
            if "example" in content:
                schema = content["schema"] | {"components": described["components"]}
                assert list(jsonschema.Draft202012Validator(schema).iter_errors(content["example"])) == []
                found += 1
    assert found >= 6


def test_path_and_query_parameters_are_those_that_routes_read(described: dict[str, Any], routes: list[Route]) -> None:
    for route in routes:
        told = operation(described, route)["parameters"]
        assert [each["name"] for each in told if each["in"] == "path"] == re.findall(r"\{(\w+)\}", route.path)
        query = route.access.query if route.access else route.query
        assert [each["name"] for each in told if each["in"] == "query"] == list(query)


def test_good_bodies_are_valid_and_unknown_fields_are_not(described: dict[str, Any], routes: list[Route]) -> None:
    bodies = [(route, body) for route in routes if (body := route.good_body) is not None]
    assert len(bodies) > 15
    for route, body in bodies:
        content = operation(described, route)["requestBody"]["content"]["application/json"]
        validator = jsonschema.Draft202012Validator(content["schema"] | {"components": described["components"]})
        assert list(validator.iter_errors(body)) == [], str(route)
        assert not validator.is_valid(body | {"no_such_field": 1}), str(route)


def test_every_admin_operation_says_what_it_needs_and_what_it_answers(
    described: dict[str, Any], routes: list[Route]
) -> None:
    for route in routes:
        if route.access is not None:
            told = operation(described, route)
            assert told.get("x-permission") == route.access.permission
            assert "content" in told["responses"]["200"], str(route)


@pytest.mark.parametrize(
    ("path", "tag"),
    [
        ("/v1/chat/completions/{completion_id}", "Chat"),
        ("/v1/organization/projects/{project_id}", "Projects"),
        ("/v1/organization/projects/{project_id}/suspend", "Projects"),
        ("/v1/organization/projects/{project_id}/api_keys/{key_id}/suspend", "API keys"),
        ("/v1/organization/suspend", "Organization"),
        ("/admin/v1/totp/confirm", "Logins"),
        ("/openapi.json", "Documents"),
    ],
)
def test_a_path_stands_where_its_resource_does(path: str, tag: str) -> None:
    assert tag_of(path).name == tag


async def test_the_document_is_served_without_a_key(house: House, described: dict[str, Any]) -> None:
    client = RawClient(house.gateway.port)
    reply = await client.send("GET", "/openapi.json", {})
    await client.close()
    assert (reply.status, reply.body) == (200, msgspec.json.encode(described))
