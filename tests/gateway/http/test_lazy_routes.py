"""Handlers that are prepared by the first request to each: every one of a gateway can be, and a wrong one is found."""

from __future__ import annotations

import pytest
from litestar import get
from litestar.exceptions import ImproperlyConfiguredException
from litestar.routes import HTTPRoute
from prometheus_client import CollectorRegistry

from gateway.http.envelope import Application
from gateway.http.lazy_routes import LazyHandlers
from gateway.observability.metrics import Metrics
from tests.gateway.conftest import House


def test_every_handler_of_a_gateway_can_be_prepared(house: House) -> None:
    app = house.gateway.app
    assert app is not None
    routes = [route for route in app.routes if isinstance(route, HTTPRoute)]
    assert len(routes) > 100
    for route in routes:
        assert isinstance(route.route_handler_map, LazyHandlers), route.path
        for method in list(route.route_handler_map):
            handler, model = LazyHandlers(app, route)[method]
            assert method in handler.http_methods and model is not None, f"{method} {route.path}"


def test_a_handler_with_a_wrong_signature_is_found() -> None:
    @get("/wrong/{number:int}")
    async def wrong(number: int, other: UnknownType) -> None:  # type: ignore[name-defined]  # noqa: F821
        """Answer nothing."""

    app = Application(metrics=Metrics(CollectorRegistry()), route_handlers=[wrong])
    route = next(each for each in app.routes if each.path == "/wrong/{number:int}")
    assert isinstance(route, HTTPRoute)
    with pytest.raises((ImproperlyConfiguredException, NameError)):
        LazyHandlers(app, route)["GET"]
