"""The OpenAPI 3.1 document of every route, made of what the routes declare about themselves: paths, permissions, query
parameters, bodies and replies. `GET /openapi.json` answers with it; it is the same for everybody."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args, get_origin

import msgspec
from litestar import Litestar, Request, Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from litestar.routes import HTTPRoute

from gateway.admin.access import Access, Form
from gateway.api.errors import ErrorBody
from gateway.api.shape import Shape

SCHEMAS = "#/components/schemas/{name}"

QUERY: dict[str, dict[str, Any]] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    "include_archived": {"type": "boolean", "default": False},
}
"""Of parameters that are no plain text."""

SECURITY = {
    "key": {"type": "http", "scheme": "bearer", "description": "An API key of a project, or an operator's."},
    "login": {
        "type": "apiKey",
        "in": "cookie",
        "name": "lorikeet_login",
        "description": "Set by POST /admin/v1/login; other methods than GET need the header x-csrf-token as well.",
    },
}


class Operation(msgspec.Struct, frozen=True):
    """One method of one path. reply None: not JSON, or any."""

    method: str
    path: str
    params: tuple[str, ...]
    handler: HTTPRouteHandler
    access: Access | None
    shape: Shape
    body: type[msgspec.Struct] | None
    reply: Any


def openapi() -> HTTPRouteHandler:
    made: list[bytes] = []

    @get("/openapi.json")
    async def get_openapi(request: Request[Any, Any, Any]) -> ASGIResponse:
        """This document."""
        if not made:
            made.append(await asyncio.to_thread(lambda: msgspec.json.encode(document(request.app))))
        return ASGIResponse(body=made[0], media_type="application/json")

    return get_openapi


def document(app: Litestar) -> dict[str, Any]:
    """What `GET /openapi.json` answers."""
    operations = sorted(_operations(app), key=lambda each: (each.path, each.method))
    kinds = {ErrorBody: None} | dict.fromkeys(_kinds(operations))
    schemas, components = msgspec.json.schema_components(list(kinds), ref_template=SCHEMAS)
    schema_of = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _described(each, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Lorikeet", "version": "1", "description": "OpenAI-compatible inference, and the admin API."},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": SECURITY},
    }


def _operations(app: Litestar) -> Iterator[Operation]:
    for route in app.routes:
        if not isinstance(route, HTTPRoute):
            continue
        for handler in route.route_handlers:
            access, shape = handler.opt.get("access"), handler.opt.get("shape", Shape())
            for method in handler.http_methods - {"OPTIONS", "HEAD"}:
                yield Operation(
                    method,
                    route.path_format,
                    tuple(route.path_parameters),
                    handler,
                    access,
                    shape,
                    access.body if access is not None else shape.body,
                    shape.reply if shape.reply or shape.media else _reply(handler),
                )


def _reply(handler: HTTPRouteHandler) -> Any:
    annotation = handler.parsed_fn_signature.return_type.annotation
    if get_origin(annotation) is Response:
        (annotation,) = get_args(annotation)
    return None if inspect.isclass(annotation) and issubclass(annotation, ASGIResponse) else annotation


def _kinds(operations: Iterable[Operation]) -> Iterator[Any]:
    for each in operations:
        yield from (kind for kind in (each.body, each.reply, each.shape.accepted) if kind is not None)


def _described(each: Operation, schema_of: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    summary, _, description = (inspect.getdoc(each.handler.fn) or "").partition("\n")
    good: dict[str, Any] = {"description": "Done."}
    content = _json(schema_of[each.reply]) if each.reply is not None else {}
    if content := content | {media: {} for media in each.shape.media}:
        good["content"] = content
    described: dict[str, Any] = {
        "operationId": each.handler.fn.__name__,
        "summary": summary or each.handler.fn.__name__.replace("_", " ").capitalize() + ".",
        "tags": [_area(each)],
        "parameters": [*_path_parameters(each.params), *_query_parameters(each), *_header_parameters(each)],
        "responses": {
            "200": good,
            "default": {"description": "Refused, or failed.", "content": _json(schema_of[ErrorBody])},
        },
        "security": _security(each),
    }
    if description.strip():
        described["description"] = description.strip()
    if each.access is not None and each.access.permission is not None:
        described["x-permission"] = each.access.permission
    if each.shape.accepted is not None:
        accepted = {"description": "Begun.", "content": _json(schema_of[each.shape.accepted])}
        described["responses"]["202"] = accepted
    if taken := _taken(each, schema_of):
        described["requestBody"] = {"required": True, "content": taken}
    return described


def _taken(each: Operation, schema_of: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    """What its body may be, by media type."""
    taken = _json(schema_of[each.body]) if each.body is not None else {}
    if each.access is not None and each.access.form is not None:
        taken |= _form(each.access.form)
    if each.access is not None and each.access.raw:
        taken |= {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    return taken


def _area(each: Operation) -> str:
    if each.path.startswith(("/v1/organization", "/admin/")):
        return "admin"
    return "inference" if each.path.startswith("/v1/") else "operation"


def _security(each: Operation) -> list[dict[str, list[str]]]:
    if each.access is not None:
        return [{"key": []}, {"login": []}] if each.access.permission is not None else [{"login": []}]
    return [{"key": []}] if _area(each) == "inference" else []


def _path_parameters(names: Sequence[str]) -> list[dict[str, Any]]:
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(each: Operation) -> Iterator[dict[str, Any]]:
    known = QUERY | dict(each.shape.query)
    for name in each.access.query if each.access is not None else ():
        described: dict[str, Any] = {"name": name, "in": "query", "schema": known.get(name, {"type": "string"})}
        yield described | ({"required": True} if name in each.shape.needed else {})


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _header_parameters(each: Operation) -> list[dict[str, Any]]:
    names = each.access.headers if each.access is not None else ()
    return [{"name": name, "in": "header", "required": True, "schema": {"type": "string"}} for name in names]


def _form(form: Form) -> dict[str, Any]:
    properties = {name: {"type": "string", "format": "binary"} for name in form.names}
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(form.required),
        "additionalProperties": False,
    }
    return {"multipart/form-data": {"schema": schema}}
