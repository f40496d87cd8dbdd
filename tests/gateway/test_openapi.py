"""The OpenAPI document tells of every route, and tells the truth."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import msgspec
import pytest

from gateway.openapi import document
from tests.gateway.admin.routes import Route, routes_of
from tests.gateway.conftest import House
from tests.gateway.hostile import RawClient


@pytest.fixture
def routes(house: House) -> list[Route]:
    assert house.gateway.app is not None
    return routes_of(house.gateway.app)


@pytest.fixture
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
    known = {f"#/components/schemas/{name}" for name in described["components"]["schemas"]}
    assert set(refs(described)) <= known


def test_path_and_query_parameters_are_those_that_routes_read(described: dict[str, Any], routes: list[Route]) -> None:
    for route in routes:
        told = operation(described, route)["parameters"]
        assert [each["name"] for each in told if each["in"] == "path"] == re.findall(r"\{(\w+)\}", route.path)
        query = route.access.query if route.access else ()
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


async def test_it_is_served_to_everybody(house: House, described: dict[str, Any]) -> None:
    client = RawClient(house.gateway.port)
    reply = await client.send("GET", "/openapi.json", {})
    await client.close()
    assert (reply.status, reply.body) == (200, msgspec.json.encode(described))
