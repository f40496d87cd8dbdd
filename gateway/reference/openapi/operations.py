"""The declarations of all routes, gathered from the application: one struct for each method of each path."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from litestar import Litestar, Response
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from litestar.routes import HTTPRoute

from gateway.admin.access import Access
from gateway.http.shape import Shape


class Operation(msgspec.Struct, frozen=True):
    """One method of one path."""

    name: str
    method: str
    path: str
    doc: str
    """The docstring of the operation's handler."""
    params: tuple[str, ...]
    """The parameters of the path, in order."""
    access: Access | None
    """The permissions of a route of the admin API; None for others."""
    is_guarded: bool
    """True if the operation needs a key or a login."""
    shape: Shape
    body: type[msgspec.Struct] | None
    """The struct of the operation's JSON body."""
    reply: Any
    """The struct of the operation's JSON reply; None if the reply is of another type."""

    @property
    def takes_body(self) -> bool:
        """True if requests may have a body."""
        access = self.access
        if self.body is not None or self.shape.form is not None:
            return True
        return access is not None and (access.raw or access.form is not None)


def operations(app: Litestar) -> list[Operation]:
    """Return every operation of the application, by path and method."""
    return sorted(_operations(app), key=lambda each: (each.path, each.method))


def _operations(app: Litestar) -> Iterator[Operation]:
    for route in app.routes:
        if not isinstance(route, HTTPRoute):
            continue
        for handler in route.route_handlers:
            if handler.include_in_schema is False:
                continue
            params, returned = _signature(handler)
            access, shape = handler.opt.get("access"), handler.opt.get("shape", Shape())
            for method in handler.http_methods - {"OPTIONS"}:
                yield Operation(
                    _name(handler),
                    method,
                    route.path_format,
                    inspect.cleandoc(handler.fn.__doc__ or ""),
                    tuple(route.path_parameters),
                    access,
                    access is not None or "caller" in params,
                    shape,
                    access.body if access is not None else shape.body,
                    shape.reply if shape.reply or shape.media else _reply_type(returned),
                )


def _name(handler: HTTPRouteHandler) -> str:
    return handler.operation_id if isinstance(handler.operation_id, str) else handler.fn.__name__


def _signature(handler: HTTPRouteHandler) -> tuple[frozenset[str], Any]:
    """Return the names of a handler's parameters, and the type of what it returns.

    Litestar's own account of a signature is not asked for: it takes ten times as long, on the event loop.
    """
    function = inspect.unwrap(handler.fn)
    signature = inspect.signature(function)
    returned = SimpleNamespace(__annotations__={"return": signature.return_annotation})
    return frozenset(signature.parameters), get_type_hints(returned, function.__globals__)["return"]


def _reply_type(returned: Any) -> Any:
    if get_origin(returned) is Response:
        (returned,) = get_args(returned)
    return None if inspect.isclass(returned) and issubclass(returned, ASGIResponse) else returned
