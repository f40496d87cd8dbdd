"""The views of the OpenAPI document that the templates show: operations by tag, schemas, failures.

Pure; knows no HTML.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from gateway.reference.page.example import example
from gateway.reference.page.snippets import curl, python
from gateway.reference.page.types import TypePart, shown_name, type_words, without_null


class Field(msgspec.Struct, frozen=True):
    """A field of a body or a parameter."""

    name: str
    type: list[TypePart]
    is_required: bool
    default: str
    """The default as JSON; "" where there is none."""
    description: str


class Reply(msgspec.Struct, frozen=True):
    """A reply with a body of its own."""

    status: str
    description: str
    contents: list[tuple[str, list[TypePart]]]
    """Each media type with its type."""
    is_failure: bool


class OperationView(msgspec.Struct, frozen=True):
    """An operation as the page shows it."""

    id: str
    method: str
    path: str
    summary: str
    description: str
    needs: str
    """The sentence about the key or the login that the operation needs."""
    parameters: list[Field]
    body: list[Field]
    """The fields of a JSON body."""
    body_types: list[tuple[str, list[TypePart]]]
    """The media types that a body may have, each with its type."""
    replies: list[Reply]
    failures: list[str]
    """Statuses of errors that are the same everywhere."""
    curl: str
    python: str
    """The call in Python; "" where OpenAI's client has no method for it."""
    reply_example: str


class TagView(msgspec.Struct, frozen=True):
    """The operations of one part of the document."""

    id: str
    name: str
    operations: list[OperationView]


class GroupView(msgspec.Struct, frozen=True):
    """The parts of one group."""

    name: str
    tags: list[TagView]


class SchemaView(msgspec.Struct, frozen=True):
    """A schema, and the fields that it has."""

    id: str
    name: str
    description: str
    fields: list[Field]


def failures(document: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return each status of an error with its response, in the order of the statuses."""
    named = {
        status: reply["$ref"].rpartition("/")[2]
        for methods in document["paths"].values()
        for operation in methods.values()
        for status, reply in operation["responses"].items()
        if "$ref" in reply
    }
    return [(status, document["components"]["responses"][named[status]]) for status in sorted(named)]


def groups(document: Mapping[str, Any]) -> list[GroupView]:
    """Return the operations of the document by group and tag."""
    by_tag: dict[str, list[OperationView]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            shown = _operation(method.upper(), path, operation, document)
            by_tag.setdefault(operation["tags"][0], []).append(shown)
    for shown_operations in by_tag.values():
        shown_operations.sort(key=lambda each: not each.python)  # the operations that most readers look for
    return [
        GroupView(group["name"], [TagView(f"tag-{_slug(name)}", name, by_tag[name]) for name in group["tags"]])
        for group in document["x-tagGroups"]
    ]


def _operation(method: str, path: str, operation: dict[str, Any], document: Mapping[str, Any]) -> OperationView:
    content = operation.get("requestBody", {}).get("content", {})
    json_body = content.get("application/json")
    body, fields = None, []
    if json_body is not None:
        component = _resolve_reference(json_body["schema"], document)
        body = json_body["example"] if "example" in json_body else example(json_body["schema"], document)
        fields = list(_fields(component))
    client_method = operation.get("x-client-method", "")
    is_admin = "x-permission" in operation
    responses = operation["responses"]
    good = responses["200"].get("content", {}).get("application/json", {})
    return OperationView(
        id=operation["operationId"],
        method=method,
        path=path,
        summary=operation["summary"],
        description=operation.get("description", ""),
        needs=_needs(operation),
        parameters=[_parameter(each) for each in operation["parameters"]],
        body=fields,
        body_types=[(media, type_words(each["schema"])) for media, each in content.items()],
        replies=[_reply_view(status, each) for status, each in responses.items() if "$ref" not in each],
        failures=[status for status, each in responses.items() if "$ref" in each],
        curl=curl(method, path, operation, body, is_admin=is_admin),
        python=python(client_method, body) if client_method else "",
        reply_example=_json(good["example"]) if "example" in good else "",
    )


def _needs(operation: dict[str, Any]) -> str:
    if not operation["security"]:
        return "Open to everybody."
    if permission := operation.get("x-permission"):
        return f"An operator's key or a login with the permission {permission}."
    return "An API key of a project." if "key" in operation["security"][0] else "A login."


def _parameter(each: dict[str, Any]) -> Field:
    schema, where = each["schema"], "" if each["in"] == "query" else f"In the {each['in']}. "
    return Field(
        each["name"],
        type_words(schema),
        each.get("required", False),
        _json(schema["default"]) if "default" in schema else "",
        where + each.get("description", ""),
    )


def _reply_view(status: str, reply: dict[str, Any]) -> Reply:
    contents = [(media, type_words(each["schema"])) for media, each in reply.get("content", {}).items()]
    return Reply(status, reply["description"], contents, is_failure=not status.startswith("2"))


def schemas(document: Mapping[str, Any]) -> list[SchemaView]:
    """Return the views of all schemas, by name."""
    return [
        SchemaView(f"schema-{name}", shown_name(name), each.get("description", ""), list(_fields(each)))
        for name, each in sorted(document["components"]["schemas"].items())
    ]


def _fields(schema: dict[str, Any]) -> Iterator[Field]:
    """Yield the fields of a schema, needed ones first."""
    required = set(schema.get("required", ()))
    properties = schema.get("properties", {})
    for name in sorted(properties, key=lambda name: name not in required):
        each = properties[name]
        default = _json(each["default"]) if "default" in each and name not in required else ""
        shown = without_null(each) if default == "null" else each
        yield Field(name, type_words(shown), name in required, default, each.get("description", ""))


def _resolve_reference(schema: dict[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    found: dict[str, Any] = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


def _slug(name: str) -> str:
    return name.lower().replace(" ", "-")


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
