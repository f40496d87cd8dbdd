"""The parts around every request, found or not: its id, the headers of every reply, one log line, one count."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Self, cast

import structlog
from litestar import Litestar, Router
from litestar.enums import ScopeType
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin
from litestar.routes import HTTPRoute
from litestar.types import (
    ControllerRouterHandler,
    HTTPScope,
    LifeSpanReceive,
    LifeSpanScope,
    LifeSpanSend,
    Message,
    Receive,
    ReceiveMessage,
    Scope,
    Send,
)

from gateway.db.ids import new_id
from gateway.domain.errors import ClientGone, DeadlinePassed, GatewayError, NotFound, ShuttingDown, shortened
from gateway.domain.tenancy.addresses import Network, client_address, contains
from gateway.domain.tenancy.keys import parse_key
from gateway.http.direct import direct_routes, is_usual
from gateway.http.error_body import OPENAI, Dialect, headers_of
from gateway.http.lazy_routes import prepare_on_use
from gateway.http.request.call import Call
from gateway.http.request.coding import coding_of, refuse_coded_body
from gateway.http.request.credentials import authorization_of, repeated_credential
from gateway.http.request.head_method import HeadReply, as_get, with_head
from gateway.http.request.paths import is_disguised, path_as_sent
from gateway.http.server_span import end_server_span, is_of_tenants
from gateway.observability.metrics import Metrics
from gateway.observability.refusals import Refusals, RefusedRequest
from gateway.observability.tracing.trace import BeginTrace, context_without_spans

log = structlog.get_logger(__name__)

_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

PROTECTIVE = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
"""Headers that every reply has with these values, unless the reply's own handler gives another value: browsers and
caches between store nothing, guess no type, show nothing in a frame and tell no other site where they come from."""


NOT_OURS = (None, ClientGone.code, DeadlinePassed.code)
"""The error codes (None: no error) at the end of a streamed reply that are no fault of this server."""


class OwnRouter(Router):
    """A router that is made for one application, which registers the router itself.

    Litestar copies a router to the bottom when it is registered, in case it is registered again. The copies take a
    fifth of a gateway's start.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class Application(Litestar):
    """Litestar, with the envelope around everything it answers, its own refusals included.

    Middleware would not do: Litestar runs none for a path it does not know.
    """

    def __init__(
        self,
        *,
        metrics: Metrics,
        trusted_proxies: Sequence[Network] = (),
        refusals: Refusals | None = None,
        dialect_of: Callable[[HTTPScope], Dialect] = lambda _: OPENAI,
        is_leaving: Callable[[], bool] = lambda: False,
        fenced: Sequence[str] = (),
        begin_trace: BeginTrace = context_without_spans,
        **options: Any,
    ) -> None:
        """Make the application.

        refusals: remembers refused requests for tenants' work.
        dialect_of: returns the API whose replies the client of a request expects.
        fenced: beginnings of paths that a proxy may keep from clients: a path that leads below one but is written in
        another way, such as `//admin`, is unknown.
        is_leaving: tells whether replies end their connections, since this gateway is about to stop.
        begin_trace: begins the trace of a request of a tenant.
        """
        self.metrics = metrics
        self.trusted_proxies = trusted_proxies
        self._refusals = refusals
        self._dialect_of = dialect_of
        self._is_leaving = is_leaving
        self._fenced = fenced
        self._begin_trace = begin_trace
        self._running: dict[asyncio.Task[Any], Call] = {}
        super().__init__(**options)
        self.direct = direct_routes(self)

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        """Return the plugins that routes need: all of them speak msgspec.

        Litestar's own list imports pydantic and attrs wherever these are installed, a quarter of a gateway's start.
        """
        return [*plugins, MsgspecDIPlugin()]

    def register(self, value: ControllerRouterHandler) -> None:  # type: ignore[override]
        """Add routes, whose handlers are prepared by the first request to each.

        Raises TypeError: when a route is not one of HTTP.
        """
        for route in Router.register(self, value):
            if not isinstance(route, HTTPRoute):
                raise TypeError(f"{route.path} is not a route of HTTP")
            prepare_on_use(self, route)
        self.asgi_router.construct_routing_trie()

    def cut_off(self) -> None:
        """Answer all requests that have no reply yet with ShuttingDown."""
        for task, call in self._running.items():
            if call.status == 0:
                call.is_cut_off = True
                task.cancel()

    async def __call__(
        self, scope: Scope | LifeSpanScope, receive: Receive | LifeSpanReceive, send: Send | LifeSpanSend
    ) -> None:
        """Answer one request, or serve the lifespan of the process."""
        if scope["type"] == ScopeType.HTTP:
            await self._answer_request(cast("HTTPScope", scope), cast("Receive", receive), cast("Send", send))
        else:
            await super().__call__(scope, receive, send)

    async def _answer_request(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        call = Call(new_id("req"), time.perf_counter_ns(), *_origin(scope, self.trusted_proxies))
        call.dialect = self._dialect_of(scope)
        if is_of_tenants(scope["path"]):
            call.trace = self._begin_trace(_traceparent(scope))
        scope.setdefault("state", {})["call"] = call

        if (coding := coding_of(scope)) is not None:
            receive = refuse_coded_body(receive, coding)

        async def watched_receive() -> ReceiveMessage:
            message = await receive()
            call.client_gone = call.client_gone or message["type"] == "http.disconnect"
            return message

        def send_with_headers(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                call.status = message["status"]
                headers = _with_headers(message["headers"], call)
                message["headers"] = [*headers, (b"connection", b"close")] if self._is_leaving() else headers
            return send(message)  # without a step of its own: it is called for each event of a stream

        task = asyncio.current_task()
        assert task is not None
        head = None
        if method == "HEAD":
            head, scope = HeadReply(send_with_headers), as_get(scope)
        self._running[task] = call
        try:
            direct = self.direct.get(scope["path"])
            if (repeated := repeated_credential(scope)) is not None:
                await _refuse(send_with_headers, call, repeated)
            elif direct is not None and is_usual(scope):
                await direct(scope, watched_receive, send_with_headers)
            elif is_disguised(scope, self._fenced):
                where = f"{method} {shortened(path_as_sent(scope))}"
                await _refuse(send_with_headers, call, NotFound(f"Invalid URL ({where}).", code="unknown_url"))
            else:
                await super().__call__(scope, watched_receive, send_with_headers if head is None else head.send)
        except asyncio.CancelledError:
            if head is not None and head.is_cut:
                if task.uncancel():  # by somebody else as well
                    raise
            elif not call.is_cut_off:
                raise
            else:
                task.uncancel()
                await _refuse(send_with_headers, call, ShuttingDown())
        finally:
            del self._running[task]
            if call.on_end is not None:
                call.on_end()
            route = str(scope.get("path_template") or "unknown")
            if call.refusal is not None and self._refusals is not None and is_of_tenants(route):
                self._refusals.add(_refused_request(call, call.refusal, route, scope))
            self.metrics.count_http(method, route, call.status)
            is_cut = call.status == 200 and call.error not in NOT_OURS and not call.is_clients_error
            if is_cut:
                self.metrics.count_cut_stream(route)
            if (trace := call.trace.trace) is not None:
                end_server_span(
                    trace,
                    call,
                    method=method,
                    scheme="https" if call.is_https else "http",
                    route=scope.get("path_template"),
                    is_our_fault=is_cut or call.status >= 500,
                )
            log.info("request", route=route, method=method, **_log_fields(call, scope))


async def _refuse(send: Send, call: Call, error: GatewayError) -> None:
    """Send an error as the reply to a request whose handler ended before a reply began."""
    call.error = error.code
    status, body = call.dialect.render_error(error, error.status, call.request_id)
    headers = {"content-type": "application/json", "content-length": str(len(body)), **headers_of(error)}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _refused_request(call: Call, error: GatewayError, route: str, scope: Scope) -> RefusedRequest:
    key = None
    if not call.tenant:  # whose key was refused itself
        given = authorization_of(scope)
        parsed = parse_key(given.partition(" ")[2].strip()) if given is not None else None
        key = parsed.sha256 if parsed is not None else None
    return RefusedRequest(
        call.request_id, call.organization, call.tenant, call.api_key_id, key, route, call.model, error
    )


def _origin(scope: HTTPScope, trusted: Sequence[Network]) -> tuple[str, bool]:
    """Return (the client's address, whether the client speaks HTTPS). Trusted proxies are believed about both."""
    client = scope.get("client")
    peer, is_https = client[0] if client else "", scope["scheme"] == "https"
    if not trusted or not contains(trusted, peer):
        return peer, is_https
    forwarded_for = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
    protocols = [value for name, value in scope["headers"] if name == b"x-forwarded-proto"]
    return client_address(peer, forwarded_for, trusted), is_https or protocols[-1:] == [b"https"]


def _with_headers(given: Iterable[tuple[bytes, bytes]], call: Call) -> list[tuple[bytes, bytes]]:
    """Return the headers of a reply: those that its handler gives, and those that every reply has."""
    headers = list(given)
    names = {name.lower() for name, _ in headers}
    if b"allow" in names:
        headers = with_head(headers)
    headers += [header for header in PROTECTIVE if header[0] not in names]
    headers += [
        (b"x-request-id", call.request_id.encode()),
        (b"openai-processing-ms", str(round(call.elapsed_ms)).encode()),
        (b"openai-version", b"2020-10-01"),
        *((name.encode(), value.encode()) for name, value in call.headers),
    ]
    if call.dialect.id_header:
        headers.append((call.dialect.id_header.encode(), call.request_id.encode()))
    if call.organization:
        headers.append((b"openai-organization", call.organization.encode()))
    return headers


def _log_fields(call: Call, scope: Scope) -> dict[str, Any]:
    fields = {
        "request_id": call.request_id,
        "client_request_id": _client_request_id(scope),
        "status": call.status,
        "ms": round(call.elapsed_ms, 1),
        "address": call.address,
        "tenant": call.tenant,
        "api_key_id": call.api_key_id,
        "model": call.model,
        "user": call.user,
        "safety_identifier": call.safety_identifier,
        "trace_id": call.trace.id,
        "span_id": "" if call.trace.trace is None else call.trace.trace.first.span_id,
        "error": call.error,
    }
    return {**{name: value for name, value in fields.items() if value not in (None, "")}, **call.fields}


def _traceparent(scope: HTTPScope) -> str:
    """Return the header `traceparent`; "" where there is none, or several, which the specification has us ignore."""
    found = [value for name, value in scope["headers"] if name == b"traceparent"]
    return found[0].decode("latin-1") if len(found) == 1 else ""


def _client_request_id(scope: Scope) -> str | None:
    """Return the client's own X-Request-Id, for the log alone, or None for one that could garble a log."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text = value.decode("latin-1")
            return text if _SANE_ID.fullmatch(text) else None
    return None
