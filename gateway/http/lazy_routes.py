"""Routes whose handlers are prepared by the first request to each, rather than all at the start of a gateway.

Litestar reads the signature of every handler when it is registered, and makes a struct of it: two thirds of the time
that an application takes to start, most of it for routes that few gateways are ever asked for. Knows nothing of what a
route does.
"""

from __future__ import annotations

from typing import Any, cast

from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.routes import HTTPRoute


class LazyHandlers(dict[str, tuple[HTTPRouteHandler, Any]]):
    """The handlers of one route by method, each with Litestar's model of its arguments, as `HTTPRoute` looks them up.

    The model is None until the handler is looked up for the first time; a walk over the values prepares nothing.
    """

    def __init__(self, app: Litestar, route: HTTPRoute) -> None:
        """Take the handlers of a route of an application."""
        super().__init__({method: (each, None) for each in route.route_handlers for method in each.http_methods})
        self._app = app
        self._path_parameters = route.path_parameters

    def __getitem__(self, method: str) -> tuple[HTTPRouteHandler, Any]:
        """Return the handler of a method with its model, after preparing it where it was not.

        Raises KeyError: when the route has no such method.
        Raises ImproperlyConfiguredException: when the handler's signature is wrong.
        """
        handler, model = super().__getitem__(method)
        if model is None:
            handler.on_registration(self._app)
            model = handler.create_kwargs_model(path_parameters=self._path_parameters)
            self[method] = handler, model
        return handler, model


def prepare_on_use(app: Litestar, route: HTTPRoute) -> None:
    """Have the handlers of a route prepared by its first requests, one for each method."""
    route.route_handler_map = cast("Any", LazyHandlers(app, route))
