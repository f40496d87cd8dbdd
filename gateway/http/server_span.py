"""The span of one request over HTTP, from its head to the end of its reply.

It says nothing that the request's log line does not say. Its path is the route's pattern: what stands for a parameter
in a path may be a secret.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.domain.errors import ModelNotFound, shortened
from gateway.domain.tracing import names
from gateway.domain.tracing.span import Attributes, Span, SpanEvent
from gateway.http.request.call import Call
from gateway.observability.tracing.trace import Trace

OF_TENANTS = ("/v1/", "/ofrep/", "/tokenize", "/detokenize", "/rerank", "/v2/rerank")
NOT_OF_TENANTS = "/v1/organization"
"""The beginnings of the paths that tenants use, and those of administrative paths below them."""

_OF_ROUTES = {"route_policy": names.ROUTE, "route_target": names.TARGET, "route_attempts": names.ATTEMPTS}


def is_of_tenants(path: str) -> bool:
    """Tell whether a path, or a route's pattern, is what tenants use keys for: no probe, and no administration.

    Such requests have spans, and their refusals are listed.
    """
    return path.startswith(OF_TENANTS) and not path.startswith(NOT_OF_TENANTS)


def end_server_span(
    trace: Trace, call: Call, *, method: str, scheme: str, route: str | None, is_our_fault: bool
) -> None:
    """End the span of a request whose reply is over.

    route: the pattern that matched; None where none did.
    is_our_fault: True where the reply, or its end, is an error of the server.
    scheme: http or https.
    """
    span = trace.first
    span.name = method if route is None else f"{method} {route}"
    attributes: Attributes = {
        names.HTTP_METHOD: method,
        names.URL_SCHEME: scheme,
        names.REQUEST_ID: call.request_id,
    }
    if route is not None:
        attributes[names.HTTP_ROUTE] = attributes[names.URL_PATH] = route
    if call.status:
        attributes[names.HTTP_STATUS] = call.status
    if call.tenant:
        attributes[names.TENANT] = call.tenant
        attributes[names.API_KEY_ID] = call.api_key_id
    if call.model and call.error != ModelNotFound.code:  # else it is the client's own text, whatever that is
        attributes[names.REQUEST_MODEL] = shortened(call.model)
    if call.error is not None or is_our_fault:
        attributes[names.ERROR_TYPE] = call.error or str(call.status)
    if call.fields:
        _add_fields(span, attributes, call.fields)
    span.attributes, span.is_error = attributes, is_our_fault
    trace.end(span)


def _add_fields(span: Span, attributes: Attributes, fields: Mapping[str, str | float]) -> None:
    """Add the fields of the log line about a route, the arm of an experiment and a vote to a span."""
    flag: Attributes = {}
    evaluation: Attributes = {}
    for name, value in fields.items():
        if name.startswith(names.FLAG_PREFIX):
            flag[name] = value
        elif name.startswith(names.EVALUATION_PREFIX):
            evaluation[name] = value
        elif (shown := _OF_ROUTES.get(name)) is not None:
            attributes[shown] = value
    for event, values in ((names.FLAG_EVENT, flag), (names.EVALUATION_EVENT, evaluation)):
        if values:
            span.events.append(SpanEvent(event, span.start_ns, values))
