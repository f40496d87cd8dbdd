"""The gateway's HTTP application, and the process that serves it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import math
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog
import uvicorn
import uvloop
from litestar import Litestar
from litestar.config.cors import CORSConfig

from gateway.admin.router import admin_routers
from gateway.assembly.services import Services, running_services
from gateway.dashboard import dashboard
from gateway.evaluation.handler import feedback
from gateway.evaluation.ofrep import ofrep
from gateway.http.bodies import Bodies
from gateway.http.caller import provide_caller
from gateway.http.envelope import Application, OwnRouter
from gateway.http.errors import exception_handlers
from gateway.http.metrics_server import Answer, MetricsText, listening_socket, metrics_app, serving_metrics
from gateway.http.protocol.bounds import Bound, State
from gateway.http.protocol.cap import ConnectionCap
from gateway.http.protocol.connection import Connection
from gateway.http.protocol.refusals import HEAD_TOO_LARGE, MAX_HEAD_BYTES, NO_BODY, NO_HEAD
from gateway.http.server import ENDING_S, Server, Stages
from gateway.messages.count import count_message_tokens
from gateway.messages.errors import dialect_of
from gateway.messages.handler import messages
from gateway.messages.models import anthropic_model, anthropic_models
from gateway.observability.metrics import configure_logging
from gateway.openai.batches.handler import batches
from gateway.openai.chat.handler import chat_completions
from gateway.openai.completions.handler import completions
from gateway.openai.conversations.handler import conversations
from gateway.openai.embeddings.handler import embeddings
from gateway.openai.files.handler import files
from gateway.openai.files.uploads import uploads
from gateway.openai.health import health
from gateway.openai.models import models
from gateway.openai.rerank.handler import rerank
from gateway.openai.responses.background.follow import Followers
from gateway.openai.responses.compact import compact
from gateway.openai.responses.handler import responses
from gateway.openai.responses.input_tokens import input_tokens
from gateway.openai.responses.state import EarlierItems
from gateway.openai.responses.stored import stored_responses
from gateway.openai.stored.handler import stored_chats
from gateway.openai.tokens.handler import tokens
from gateway.reference.page.routes import documentation
from gateway.settings import Settings
from gateway.support.descriptors import max_connections, raise_descriptor_limit
from gateway.support.pace import Pace

log = structlog.get_logger(__name__)

KEEP_ALIVE_S = 75
COLLECT_AFTER = 10_000
"""The objects that come, beyond those that go, before the garbage collector looks for cycles among them.

A request has some hundred at a time: with Python's 700 a few requests side by side were looked through again and again.
"""

FIND_REPLICAS_S = 3.0
"""The most seconds for which a gateway that starts lets clients wait for its connections to replicas."""

MAX_UNWANTED_BYTES = 32 << 20
"""The most bytes that are read of the rest of an answered request: an upload in one piece by `lorikeet adapter add` has
fewer."""
UNWANTED_BYTES_PER_S = 8 << 20
"""The bytes per second at which the rest of an answered request is read."""
UNWANTED_BODY_S = 10.0
"""Seconds for which the rest of an answered request is read."""

TOKENIZING_PER_S, TOKENIZING_BURST = 50.0, 100.0


def build_app(services: Services) -> Application:
    """Build the application: OpenAI's routes under /v1, the admin API, their document, the dashboard and health."""
    pools, settings = services.pools, services.settings
    caller = provide_caller(services.authenticator)
    bodies = Bodies()
    pace = Pace(TOKENIZING_PER_S, TOKENIZING_BURST, what="tokenization")
    earlier = EarlierItems(services.responses, services.conversations, bodies, services.sealed_items)
    followers = Followers(services.background)
    openai = OwnRouter(
        "/v1",
        route_handlers=[
            chat_completions(services.pipeline, bodies, services.idempotency, services.chats),
            completions(services.pipeline, bodies, services.idempotency),
            responses(
                services.pipeline,
                bodies,
                services.idempotency,
                services.responses,
                earlier,
                services.background,
                followers,
            ),
            compact(services.pipeline, bodies, services.idempotency, earlier),
            input_tokens(services.pipeline, bodies, pace, earlier),
            *stored_responses(services.responses, services.background, followers),
            *conversations(services.conversations, earlier, bodies),
            *batches(services.batches, bodies),
            *files(services.files, max_bytes=settings.max_file_bytes),
            *uploads(services.uploads, services.files.content, bodies),
            embeddings(services.pipeline, bodies, services.idempotency),
            rerank(services.pipeline, bodies, services.idempotency),
            *stored_chats(services.chats, bodies),
            messages(services.pipeline, bodies, services.idempotency, services.signatures),
            count_message_tokens(services.pipeline, bodies, pace, services.signatures),
            *models(services.resolver, pools, anthropic_models, anthropic_model),
            *tokens(services.pipeline, bodies, pace, operations=("tokenize", "detokenize")),
            *feedback(services.votes, bodies, may_post=provide_caller(services.authenticator, "feedback")),
        ],
        dependencies={"caller": caller},
    )
    return Application(
        metrics=services.metrics,
        trusted_proxies=settings.trusted_networks,
        refusals=services.refusals,
        dialect_of=dialect_of,
        is_leaving=lambda: services.readiness.is_leaving,
        fenced=FENCED,
        begin_trace=services.begin_trace,
        route_handlers=[
            openai,
            OwnRouter(
                "/",
                route_handlers=tokens(
                    services.pipeline, bodies, pace, operations=("tokenize_unversioned", "detokenize_unversioned")
                ),
                dependencies={"caller": caller},
            ),
            OwnRouter(
                "/",
                route_handlers=[
                    rerank(services.pipeline, bodies, services.idempotency, path=path, operation=operation)
                    for path, operation in (
                        ("/rerank", "rank_documents_unversioned"),
                        ("/v2/rerank", "rank_documents_of_version_2"),
                    )
                ],
                dependencies={"caller": caller},
            ),
            ofrep(services.flags, bodies, caller=caller),
            *admin_routers(services.admin),
            *documentation(),
            *dashboard(),
            *health(services.readiness, services.version),
        ],
        exception_handlers=exception_handlers(),
        request_max_body_size=settings.max_body_bytes,
        # Cookies stay with our own pages: another origin's has to bring a key.
        cors_config=CORSConfig(allow_origins=settings.allowed_origins) if settings.cors_origins else None,
        openapi_config=None,  # ours is made of what the routes declare
        logging_config=None,
    )


FENCED = ("/v1/organization", "/admin")
"""The operator's paths, which proxies are told to keep from tenants' networks (deploy/README.md)."""


def server_config(settings: Settings, app: Litestar | Callable[..., Any]) -> uvicorn.Config:
    """Return the configuration of the HTTP server, whose protocol notices when clients have left."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=_protocol(settings),  # type: ignore[arg-type]  # any callable will do
        ws="none",
        proxy_headers=False,  # uvicorn would believe every process of this machine
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(settings.drain_seconds + ENDING_S),  # the server comes before that
    )


def _protocol(settings: Settings) -> Callable[..., Connection]:
    """Return the function that makes a connection's protocol, with the bounds of each state of a connection.

    If several bounds apply to a connection, the first in the list counts.
    """
    cap = ConnectionCap(settings.max_connections_per_address, settings.trusted_networks, max_in_all=max_connections())
    bounds = [
        Bound(State.UNREAD, settings.unread_seconds),
        Bound(State.UNWANTED_BODY, UNWANTED_BODY_S, max_bytes=MAX_UNWANTED_BYTES, bytes_per_s=UNWANTED_BYTES_PER_S),
        Bound(State.BODY, settings.body_seconds, late=NO_BODY, bytes_per_extra_s=1024),
        Bound(State.RUNNING, math.inf, max_bytes=MAX_HEAD_BYTES),
        Bound(State.IDLE, KEEP_ALIVE_S),
        Bound(State.HEAD, settings.head_seconds, late=NO_HEAD, max_bytes=MAX_HEAD_BYTES, too_large=HEAD_TOO_LARGE),
    ]
    return functools.partial(Connection, cap, {bound.state: bound for bound in bounds})


def make_server(services: Services) -> Server:
    """Return the server of the whole application, which does not serve yet."""
    settings, app = services.settings, build_app(services)

    def end_generation() -> None:
        services.pools.rooms.leave()
        for backend in services.pools.connected:
            backend.cut_off()

    def leave() -> None:
        services.readiness.leave()
        services.runner.retire()

    stages = Stages(
        leave=leave,
        begin_drain=services.admin.watchers.close,
        end_generation=end_generation,
    )
    return Server(
        server_config(settings, app),
        app,
        stages,
        drain_s=settings.drain_seconds,
        lame_duck_s=settings.lame_duck_seconds,
    )


def operator_app(services: Services) -> Callable[..., Any]:
    """Return the application of the operator's listener: metrics, and the same probes as on the tenants' port."""

    async def alive() -> Answer:
        return Answer(b'{"status":"ok"}')

    async def ready() -> Answer:
        is_ready = await services.readiness.is_ready()
        return Answer(b'{"status":"ready"}') if is_ready else Answer(b'{"status":"not ready"}', 503)

    async def version() -> Answer:
        return Answer(msgspec.json.encode({"version": services.version}))

    answers = {"/health/startup": alive, "/health/live": alive, "/health/ready": ready, "/version": version}
    return metrics_app(MetricsText(services.metrics.render), answers)


def run_gateway(
    settings: Settings,
    *,
    model_dir: Path | None,
    dsn: str,
    sockets: Sequence[socket.socket] | None = None,
    metrics_socket: socket.socket | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, and for `lame_duck_seconds` more.

    Then running requests may finish within `drain_seconds`.

    model_dir: the folder of the settings' base model, for an installation that never had a pool; None for others.
    sockets: listening sockets to serve on; None: serve on the settings' host and port. metrics_socket: a listening
    socket for metrics; None: as the settings' metrics_listen says.
    """
    configure_logging(settings.log_level)
    raise_descriptor_limit()
    if metrics_socket is None:
        metrics_socket = listening_socket(settings.metrics_address)
    with contextlib.suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, model_dir, dsn, list(sockets) if sockets else None, metrics_socket))


async def _serve(
    settings: Settings,
    model_dir: Path | None,
    dsn: str,
    sockets: list[socket.socket] | None,
    metrics_socket: socket.socket | None,
) -> None:
    loop, main = asyncio.get_running_loop(), asyncio.current_task()
    assert main is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, main.cancel)  # as long as there is nothing to drain
    async with running_services(settings, model_dir=model_dir, dsn=dsn) as services:
        server = make_server(services)
        # The garbage collector need not walk through objects that live as long as the process.
        gc.collect()
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.handle_exit, number, None)
        metrics = server_config(settings, operator_app(services))
        async with serving_metrics(metrics, metrics_socket):
            await services.pools.find_replicas(FIND_REPLICAS_S)  # the socket may have clients that wait already
            await server.serve(sockets)
    log.info("gateway_stopped")
