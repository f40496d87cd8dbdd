"""The routes of nearly all requests, called without the framework's routing and injection of dependencies.

A request to a fixed path whose handler takes `request` and `caller` alone needs neither. Errors are rendered by the
same functions, and every unusual request goes through the framework, so that both ways give the same bytes.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Awaitable, Callable
from typing import Any, cast

from litestar import Litestar, Request, Response
from litestar.exceptions import InternalServerException, LitestarException
from litestar.exceptions.http_exceptions import RequestEntityTooLarge
from litestar.handlers import HTTPRouteHandler
from litestar.routes import HTTPRoute
from litestar.types import Empty, HTTPReceiveMessage, HTTPScope, Receive, Send

_PARAMETERS = {"request", "caller"}
_USUAL_HOST = re.compile(rb"[0-9A-Za-z.:\[\]-]*")


class DirectRequest(Request[Any, Any, Any]):
    """A request whose body is read without Litestar's copy of the headers and its generator."""

    async def body(self) -> bytes:
        """Return the whole body of the request.

        Raises RequestEntityTooLarge: when the body is larger than the route allows.
        Raises InternalServerException: when the client disconnects before the end.
        """
        if self._body is not Empty:
            return self._body
        max_bytes = self.route_handler.resolve_request_max_body_size() or math.inf
        for name, value in self.scope["headers"]:
            if name == b"content-length" and (not value.isdigit() or int(value) > max_bytes):
                return await super().body()
        parts, num_bytes = [], 0
        while True:
            message = cast("HTTPReceiveMessage", await self.receive())
            if message["type"] == "http.disconnect":
                raise InternalServerException("client disconnected prematurely")
            num_bytes += len(message["body"])
            if num_bytes > max_bytes:
                raise RequestEntityTooLarge
            parts.append(message["body"])
            if not message.get("more_body", False):
                break
        self.is_connected = False
        self._body = self._connection_state.body = b"".join(parts)
        return self._body


class DirectRoute:
    """One route that is called directly, for POST alone."""

    def __init__(self, app: Litestar, path: str, handler: HTTPRouteHandler) -> None:
        self._app = app
        self._path = path
        self._handler = handler
        provide = cast("Any", handler.resolve_dependencies()["caller"])
        self._caller: Callable[[Request[Any, Any, Any]], Awaitable[Any]] = provide.dependency
        self._renderers: dict[type[Exception], Callable[..., Response[bytes]]] = cast(
            "Any", handler.resolve_exception_handlers()
        )

    async def __call__(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        """Answer a request. Raises LitestarException: for an error after the reply has begun."""
        scope["app"] = scope["litestar_app"] = self._app
        scope["path_params"], scope["path_template"], scope["route_handler"] = {}, self._path, self._handler
        request = DirectRequest(scope, receive, send)
        try:
            response = await self._handler.fn(request=request, caller=await self._caller(request))
            await response(scope, receive, send)
        except Exception as error:
            if scope["state"]["call"].status:
                raise LitestarException("Exception caught after response started") from error
            rendered = self._render(request, error)
            await rendered.to_asgi_response(app=None, request=request)(scope, receive, send)

    def _render(self, request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        kind = next(kind for kind in type(error).__mro__ if kind in self._renderers)
        return self._renderers[kind](request, error)


def direct_routes(app: Litestar) -> dict[str, DirectRoute]:
    """Return the routes of an application that use none of the framework's features, by path."""
    return {
        route.path: DirectRoute(app, route.path, handler)
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
        if "POST" in handler.http_methods and _is_plain(handler)
    }


def is_usual(scope: HTTPScope) -> bool:
    """Tell whether the framework has nothing to add to or to refuse in a request for a direct route."""
    if scope["method"] != "POST" or scope.get("root_path"):
        return False
    for name, value in scope["headers"]:
        if name == b"origin" or (name == b"host" and _USUAL_HOST.fullmatch(value) is None):
            return False
    return True


def _is_plain(handler: HTTPRouteHandler) -> bool:
    return (
        inspect.signature(handler.fn).parameters.keys() == _PARAMETERS
        and "caller" in handler.resolve_dependencies()
        and not handler.resolve_guards()
        and handler.status_code == 200
    )
