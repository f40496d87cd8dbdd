"""The verbs that run or prepare a part of the server on this machine, and the one that lists its settings."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from engine.config.imports import no_collections
from gateway.cli.errors import CommandFailed, ServerUnreachable
from gateway.cli.output import print_json, print_table
from gateway.cli.verbs import add_command, add_group, add_verb
from gateway.settings import Settings, load_settings, settings_table
from gateway.settings.transport import check_transport

if TYPE_CHECKING:
    from gateway.cli.output import Verbs
    from gateway.db.roles import Dsns

MAX_REPLICAS = 1000
"""The most replicas that an installation begins with."""
MAX_GATEWAYS = 64
"""The most gateways on one machine: more only compete for its processors and for the database's connections."""


def register(verbs: Verbs) -> None:
    """Add the commands that run or prepare a part of the server, and `lorikeet settings`, to the command line."""
    serve = add_command(
        verbs,
        "serve",
        _serve,
        "Run everything on this machine: database, engine and gateways, started in order and supervised. "
        "Ctrl-C or SIGTERM lets running requests finish, then stops it all.",
        has_json=False,
    )
    serve.add_argument(
        "--gateways",
        type=_num_gateways,
        default=1,
        metavar="N",
        help=f"number of gateway processes that share the port, 1 to {MAX_GATEWAYS} (default: 1)",
    )
    serve.add_argument(
        "--demo",
        choices=("one", "two"),
        default="one",
        help="number of the demo's base models: `two` adds a small one with random weights (default: one)",
    )
    gateway = add_command(
        verbs,
        "gateway",
        _gateway,
        "Run one gateway process against an existing database and engine. Any number of gateways may run.",
        has_json=False,
    )
    gateway.add_argument(
        "--fd",
        type=int,
        metavar="N",
        help="file descriptor of an inherited listening socket to serve on, instead of opening a socket",
    )
    gateway.add_argument(
        "--metrics-fd",
        type=int,
        metavar="N",
        help="file descriptor of an inherited listening socket for metrics, instead of LORIKEET_METRICS_LISTEN",
    )
    agent = add_command(
        verbs,
        "agent",
        _agent,
        "Run this machine's engines as the pools of the database say. Engines serve on when the agent "
        "ends, and the next agent takes them over.",
        has_json=False,
    )
    agent.add_argument("--stop-engines", action="store_true", help="stop the engines too when the agent is stopped")
    agent.add_argument(
        "--drain-engines",
        action="store_true",
        help="stop the engines too when the agent is stopped, but let running requests finish first, within "
        "LORIKEET_REPLICA_DRAIN_SECONDS, while new requests go to other hosts; a second signal does not wait",
    )
    agent.add_argument(
        "--give-up", action="store_true", help="end with the reason where no engine can be started, instead of retrying"
    )
    add_command(
        verbs,
        "worker",
        _worker,
        "Keep the books of experiments, which gateways do themselves where no worker runs. Any number of "
        "workers may run: one works, and the others stand by.",
        has_json=False,
    )
    add_command(
        verbs,
        "engine",
        _engine,
        "Run one engine process for the base model, listening for gateways at LORIKEET_ENGINE_ENDPOINT.",
        has_json=False,
    )
    migrate = add_command(
        verbs,
        "migrate",
        _migrate,
        "Bring the schema of DATABASE_URL, or of the running embedded database, up to date. Makes the "
        "operator's key and the first person too, where LORIKEET_ADMIN_KEY and LORIKEET_ADMIN_PASSWORD are set.",
    )
    migrate.add_argument(
        "--first-pool",
        type=_num_replicas,
        metavar="N",
        help="make the first pool, of LORIKEET_MODEL, with N replicas for agents to start, unless there was one before",
    )
    migrate.add_argument(
        "--allow-newer",
        action="store_true",
        help="leave a database as it is that has the schema of a later version, and succeed: on the way back from an "
        "upgrade",
    )
    add_verb(
        add_group(verbs, "model", "Prepare the base model that LORIKEET_MODEL names."),
        "prepare",
        _prepare,
        "download or convert the base model, so that the server starts at once",
        "Download or convert the base model into the data folder, if need be, and print its folder.",
    )
    add_command(verbs, "settings", _settings, "List every environment variable with its default.")


def _serve(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    settings = load_settings(environ)
    check_transport(settings, environ)
    with no_collections():
        from gateway.serve import serve
        from gateway.support.process import keep_private

    if arguments.demo == "two" and settings.model != "demo":
        raise CommandFailed(f"--demo two needs LORIKEET_MODEL=demo, not {settings.model}")
    keep_private()
    return serve(settings, gateways=arguments.gateways, num_demo_pools=2 if arguments.demo == "two" else 1)


def _gateway(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    settings = load_settings(environ)
    check_transport(settings, environ)
    sockets = None if arguments.fd is None else [_listening_socket("--fd", arguments.fd)]
    metrics_fd = arguments.metrics_fd
    metrics_socket = None if metrics_fd is None else _listening_socket("--metrics-fd", metrics_fd)
    with no_collections():
        from adapters.errors import StoreFailure
        from gateway.assembly.app import run_gateway
        from gateway.db.pool import UNUSABLE, in_words
        from gateway.domain.content.keys import BadContentKey
        from gateway.metering.recovery import JournalUnusable
        from gateway.support.process import keep_private

    _refuse_half_restored(settings)
    keep_private()
    try:
        run_gateway(
            settings,
            model_dir=_prepared_if_needed(settings),
            dsn=database_dsn(settings),
            sockets=sockets,
            metrics_socket=metrics_socket,
        )
    except UNUSABLE as error:
        raise CommandFailed(in_words(error)) from None
    except (BadContentKey, JournalUnusable, StoreFailure) as error:
        raise CommandFailed(str(error)) from None
    return 0


def _agent(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    settings = load_settings(environ)
    with no_collections():
        from gateway.agent.run import run_agent
        from gateway.db.pool import UNAVAILABLE, UNUSABLE, in_words
        from gateway.observability.metrics import configure_logging
        from gateway.serve.lock import DataFolderUnusable, make_data_folder
        from gateway.support.process import keep_private

    _refuse_half_restored(settings)
    keep_private()
    try:
        make_data_folder(settings.data_dir)
        configure_logging(settings.log_level)
        dsn = database_dsn(settings)
        return run_agent(
            settings,
            dsn,
            stops_engines=arguments.stop_engines,
            drains_engines=arguments.drain_engines,
            gives_up=arguments.give_up,
        )
    except DataFolderUnusable as error:
        raise CommandFailed(str(error)) from None
    except UNUSABLE as error:
        raise CommandFailed(in_words(error)) from None
    except UNAVAILABLE as error:
        raise ServerUnreachable(in_words(error)) from None


def _worker(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    settings = load_settings(environ)
    with no_collections():
        from gateway.assembly.worker import run_worker
        from gateway.db.pool import UNAVAILABLE, UNUSABLE, in_words
        from gateway.support.process import keep_private

    _refuse_half_restored(settings)
    keep_private()
    try:
        run_worker(settings, database_dsn(settings))
    except UNUSABLE as error:
        raise CommandFailed(in_words(error)) from None
    except UNAVAILABLE as error:
        raise ServerUnreachable(in_words(error)) from None
    return 0


def _engine(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    settings = load_settings(environ)
    model_dir = _prepared(settings)
    from gateway.agent.commands import engine_environ
    from gateway.serve.commands import engine_command
    from gateway.support.process import private_folder

    if settings.engine.endpoint.startswith(f"ipc://{settings.run_dir}/"):
        settings.run_dir.parent.mkdir(parents=True, exist_ok=True)
        private_folder(settings.run_dir, os.geteuid(), os.getegid())
    command = engine_command(settings, model_dir)
    os.execve(command[0], command, engine_environ(environ))  # noqa: S606 - no shell is wanted


def _migrate(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    settings = load_settings(environ)
    _refuse_half_restored(settings)
    dsns = owner_and_gateway_dsns(settings)
    import asyncio

    from gateway.db.migrate import MigrationRefused, NewerDatabase, migrate
    from gateway.db.pool import UNAVAILABLE, UNUSABLE, in_words
    from gateway.db.roles import runtime_role
    from gateway.pools.first_pool import want_first_pool

    make_pool = partial(want_first_pool, name=settings.model_name, model=settings.model)
    try:
        also = None if arguments.first_pool is None else partial(make_pool, num_replicas=arguments.first_pool)
        try:
            applied = asyncio.run(migrate(dsns.owner, runtime=asyncio.run(runtime_role(dsns)), also=also))
        except NewerDatabase as newer:
            if not arguments.allow_newer:
                raise
            print(f"{newer}: it is left as it is", file=sys.stderr)
            applied = []
        if settings.admin_key or settings.admin_password:
            from gateway.serve.bootstrap import BadOperatorKey, make_operator

            try:
                asyncio.run(make_operator(dsns.owner, settings))
            except BadOperatorKey as error:
                raise CommandFailed(str(error)) from None
    except MigrationRefused as error:
        raise CommandFailed(str(error)) from None
    except UNUSABLE as error:
        raise CommandFailed(in_words(error)) from None
    except UNAVAILABLE as error:
        raise ServerUnreachable(in_words(error)) from None
    if arguments.json:
        print_json({"applied": applied})
    else:
        print("\n".join(f"applied {name}" for name in applied) or "the schema is up to date")
    return 0


def _prepare(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    model_dir = _prepared(load_settings(environ))
    if arguments.json:
        print_json({"path": str(model_dir)})
    else:
        print(model_dir)
    return 0


def _settings(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    rows = settings_table()
    if arguments.json:
        print_json([{"name": row.name, "default": row.default, "doc": row.doc} for row in rows])
    else:
        print_table(("NAME", "DEFAULT", "MEANING"), [(row.name, row.default, row.doc) for row in rows])
    return 0


def _prepared(settings: Settings) -> Path:
    """Prepare the base model and return its folder; progress goes to stderr."""
    from gateway.agent.model import ModelNotPrepared, prepare_model
    from gateway.serve.lock import DataFolderUnusable, make_data_folder

    try:
        make_data_folder(settings.data_dir)
        return prepare_model(settings, lambda line: print(line, file=sys.stderr))
    except (DataFolderUnusable, ModelNotPrepared) as error:
        raise CommandFailed(str(error)) from None


def _prepared_if_needed(settings: Settings) -> Path | None:
    """Prepare the settings' base model if a gateway needs it, and return the model's folder.

    Return None if the installation has had a pool, and no pool needs this model to be prepared here.

    Raises one of `gateway.db.pool.UNUSABLE`: when the connection string or the schema is wrong.
    Raises CommandFailed: when the data folder cannot be used.
    """
    import asyncio

    from gateway.db.pool import UNAVAILABLE, UNUSABLE
    from gateway.pools.first_pool import needs_model
    from gateway.serve.lock import DataFolderUnusable, make_data_folder

    try:
        make_data_folder(settings.data_dir)
        if not asyncio.run(needs_model(database_dsn(settings), settings)):
            return None
    except DataFolderUnusable as error:
        raise CommandFailed(str(error)) from None
    except UNUSABLE:
        raise
    except UNAVAILABLE:  # which the start waits for
        pass
    return _prepared(settings)


def _refuse_half_restored(settings: Settings) -> None:
    from gateway.serve.lock import DataFolderUnusable, refuse_half_restored

    try:
        refuse_half_restored(settings.data_dir)
    except DataFolderUnusable as error:
        raise CommandFailed(str(error)) from None


def database_dsn(settings: Settings) -> str:
    """Return the connection string of gateways: DATABASE_URL, or that of the data folder's embedded database.

    Raises ServerUnreachable: when no database runs.
    """
    return owner_and_gateway_dsns(settings).runtime


def owner_and_gateway_dsns(settings: Settings) -> Dsns:
    """Return the connection strings of the schema's owner and of gateways, found as `database_dsn` finds the latter.

    Raises ServerUnreachable: when no database runs.
    """
    from gateway.db.roles import Dsns
    from gateway.postgres.embedded import running_dsn, runtime_dsn

    if settings.database_url is not None:
        return Dsns(settings.database_owner_url or settings.database_url, settings.database_url)
    owner, runtime = running_dsn(settings.data_dir), runtime_dsn(settings.data_dir)
    if owner is None or runtime is None:
        raise ServerUnreachable(
            f"no database runs for {settings.data_dir}: start the server with `lorikeet serve`, or set DATABASE_URL"
        )
    return Dsns(owner, runtime)


def _listening_socket(flag: str, descriptor: int) -> socket.socket:
    try:
        return socket.socket(fileno=descriptor)
    except OSError as error:
        raise CommandFailed(f"{flag} {descriptor} is not a socket: {error.strerror}") from None


def _num_gateways(text: str) -> int:
    return _number(text, 1, MAX_GATEWAYS)


def _num_replicas(text: str) -> int:
    return _number(text, 0, MAX_REPLICAS)


def _number(text: str, least: int, most: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}, not {text!r}")
    return number
