"""The document as a whole: operations by path, and the components that they refer to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from litestar import Litestar

from gateway.admin.access import COOKIE, CSRF_HEADER, SECURE_COOKIE
from gateway.admin.examples import BODIES
from gateway.http.error_body import ErrorBody
from gateway.http.shape import Form
from gateway.reference.openapi import headers
from gateway.reference.openapi.operations import Operation, operations
from gateway.reference.openapi.parameters import parameters
from gateway.reference.openapi.replies import SchemaOf, as_json, failures, replies
from gateway.reference.openapi.schemas import schemas_of
from gateway.reference.openapi.streams import kinds_of
from gateway.reference.openapi.tags import tag_groups, tag_of

INFO = {
    "title": "Lorikeet",
    "version": "1",
    "summary": "OpenAI's API over each tenant's own adapters, and the API that operates it.",
    "description": "Inference takes an API key of a project, the admin API an operator's key or a login. Unknown "
    "fields are refused by name, never ignored.",
    "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
}

SECURITY = {
    "key": {"type": "http", "scheme": "bearer", "description": "An API key of a project, or an operator's key."},
    "login": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": f"The cookie of POST /admin/v1/login, over HTTPS `{SECURE_COOKIE}`. Other methods than GET need "
        f"the header {CSRF_HEADER} too.",
    },
}


def document(app: Litestar) -> dict[str, Any]:
    """Return the document that `GET /openapi.json` of an application answers with."""
    return document_of(operations(app))


def document_of(found: Sequence[Operation]) -> dict[str, Any]:
    """Return the document that describes these operations."""
    schema_of, components = schemas_of([ErrorBody, *_kinds(found)])
    paths: dict[str, dict[str, Any]] = {}
    for each in found:
        paths.setdefault(each.path, {})[each.method.lower()] = _description_of(each, schema_of)
    tags = {tag_of(each.path) for each in found}
    return {
        "openapi": "3.1.0",
        "info": INFO,
        "servers": [{"url": "/"}],
        "tags": [{"name": tag.name} for tag in sorted(tags)],
        "x-tagGroups": tag_groups(tags),
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": failures(schema_of),
            "headers": headers.ALL,
            "securitySchemes": SECURITY,
        },
    }


def _kinds(found: Iterable[Operation]) -> Iterator[Any]:
    for each in found:
        shape = each.shape
        kinds = (each.body, each.reply, shape.accepted_reply, *kinds_of(shape), *shape.statuses.values())
        yield from (kind for kind in kinds if kind is not None)


def _description_of(each: Operation, schema_of: SchemaOf) -> dict[str, Any]:
    summary, _, description = each.doc.partition("\n\n")
    described: dict[str, Any] = {
        "operationId": each.name,
        "summary": " ".join(summary.split()) or each.name.replace("_", " ").capitalize() + ".",
        "tags": [tag_of(each.path).name],
        "parameters": parameters(each),
        "responses": replies(each, schema_of),
        "security": _security(each),
    }
    if description.strip():
        described["description"] = description.strip()
    if each.access is not None and each.access.permission is not None:
        described["x-permission"] = each.access.permission
    if each.shape.example.client_method:
        described["x-client-method"] = each.shape.example.client_method
    if taken := _request_bodies(each, schema_of):
        described["requestBody"] = {"required": _must_have_body(each), "content": taken}
    return described


def _request_bodies(each: Operation, schema_of: SchemaOf) -> dict[str, Any]:
    """Return the bodies that an operation accepts, by media type."""
    taken = as_json(schema_of[each.body]) if each.body is not None else {}
    example = each.shape.example.body or (BODIES.get(each.body) if each.body is not None else None)
    if taken and example is not None:
        taken["application/json"]["example"] = example
    form = each.access.form if each.access is not None else each.shape.form
    if form is not None:
        taken |= _form(form)
    if each.access is not None and each.access.raw:
        taken |= {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    return taken


def _must_have_body(each: Operation) -> bool:
    """Tell whether an operation needs a body. If no field is needed, no body is needed."""
    if each.body is None:
        return True
    return any(field.required for field in msgspec.structs.fields(each.body))


def _security(each: Operation) -> list[dict[str, list[str]]]:
    if each.access is not None:
        return [{"key": []}, {"login": []}] if each.access.permission is not None else [{"login": []}]
    return [{"key": []}] if each.is_guarded else []


def _form(form: Form) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {
            name: {"type": "string"} | ({} if name in form.texts else {"format": "binary"}) for name in form.names
        },
        "required": list(form.required),
        "additionalProperties": False,
    }
    return {"multipart/form-data": {"schema": schema}}
