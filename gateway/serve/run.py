"""The order of a start and of its end. Each step registers its own undoing, so that any failure unwinds cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from contextlib import ExitStack
from pathlib import Path

from adapters.errors import AdapterRejected, StoreFailure
from engine.config import model_digest
from gateway.agent.model import ModelNotPrepared, prepare_model
from gateway.db.migrate import MigrationRefused
from gateway.db.pool import UNAVAILABLE, UNUSABLE, Database, in_words
from gateway.db.roles import Dsns, ensure_runtime_role, runtime_role
from gateway.observability.metrics import empty_shared_metrics
from gateway.postgres.embedded import EmbeddedPostgres, EmbeddedPostgresError, runtime_dsn, runtime_password
from gateway.postgres.placement import PlacementError
from gateway.serve import second_pool
from gateway.serve.account import give_data_files, owner_of_models, server_account, take_back
from gateway.serve.banner import banner
from gateway.serve.bootstrap import BadOperatorKey, bootstrap
from gateway.serve.commands import agent_command, gateway_command, gateway_environ, worker_command
from gateway.serve.first_pool import settle_first_pool
from gateway.serve.fleet import Fleet, StartFailed
from gateway.serve.listener import Listener, PortUnavailable, engines_in_words, is_ready, need_not_wait
from gateway.serve.lock import DataFolderInUse, DataFolderUnusable, data_folder_lock, refuse_half_restored
from gateway.serve.stop import StopRequested, StopSignals
from gateway.serve.supervisor import Child
from gateway.serve.terminal import Terminal
from gateway.settings import Settings
from gateway.support.accounts import Account, as_root, environ_of, step_down, step_up
from gateway.support.process import bound_logs, private_folder

PROBE_INTERVAL_S = 0.25
PROGRESS_INTERVAL_S = 5.0
FIRST_MODEL_S = 60.0
"""Seconds for which a start waits for the first base model when everything else is ready."""

TEND_INTERVAL_S = 0.2
"""Seconds between two checks for children that have ended.

Each check takes processor time from the engine, where processors are few.
"""


class DatabaseUnusable(RuntimeError):
    """The error for a DATABASE_URL that cannot be reached or used; the message has the reason, without the password."""


# Errors that a person can put right; any other error is a fault of ours and keeps its traceback.
START_ERRORS: tuple[type[Exception], ...] = (
    AdapterRejected,
    BadOperatorKey,
    DataFolderInUse,
    DataFolderUnusable,
    DatabaseUnusable,
    EmbeddedPostgresError,
    MigrationRefused,
    ModelNotPrepared,
    PlacementError,
    PortUnavailable,
    StartFailed,
    StoreFailure,
    *UNAVAILABLE,
)


def serve(settings: Settings, gateways: int = 1, num_demo_pools: int = 1) -> int:
    """Run everything on this machine until a stop signal, from the main thread.

    Return the exit code: 0 after a stop; 1 if the start failed, which one line on standard error explains.
    gateways: number of gateway processes that share the port. num_demo_pools: 2 adds the demo's second pool.
    """
    terminal = Terminal()
    with StopSignals() as stop:
        try:
            _run(settings, gateways, num_demo_pools, terminal, stop)
        except StopRequested:
            terminal.report("stopped while starting")
        except UNUSABLE as error:
            terminal.report(f"error: {in_words(error)}")
            return 1
        except START_ERRORS as error:
            terminal.report(f"error: {str(error) or type(error).__name__}")
            return 1
    return 0


def _run(settings: Settings, gateways: int, num_demo_pools: int, terminal: Terminal, stop: StopSignals) -> None:
    with ExitStack() as stack:
        stack.enter_context(data_folder_lock(settings.data_dir, settings.base_url))
        refuse_half_restored(settings.data_dir)
        listener = Listener(settings.host, settings.port)
        stack.callback(listener.close)
        account = server_account(settings, terminal.report)
        with stop.interrupts(), terminal.step(f"base model {settings.model_name}"):
            model_dir = prepare_model(settings, terminal.report, owner_of_models(settings, account))
        if account is not None:
            give_data_files(settings, account)
            step_down(account)
            stack.callback(step_up)
        else:
            take_back(settings)
        postgres, dsns = _start_database(settings, account, terminal, stop, stack)
        with stop.interrupts(), terminal.step("database schema and keys"):
            digest = model_digest(model_dir)
            runtime = asyncio.run(runtime_role(dsns))
            access = asyncio.run(bootstrap(dsns.owner, settings, digest, runtime))
            notes = asyncio.run(settle_first_pool(dsns.runtime, settings, model_dir, digest))
        for note in notes:
            terminal.report(note)
        if num_demo_pools > 1:
            with stop.interrupts(), terminal.step(f"second base model {second_pool.NAME}"):
                second_pool.add_second_pool(dsns.runtime, settings, terminal.report, account)
        metrics_fd = _metrics_fd(settings, terminal, stack)
        fleet = _build_fleet(
            settings, gateways, model_dir, dsns.runtime, account, postgres, listener, metrics_fd, terminal
        )
        stack.callback(fleet.drain, settings.lame_duck_seconds + settings.drain_seconds, lambda: stop.forced)
        fleet.start(stop)
        _wait_until_ready(settings, access.operator_key, fleet, terminal, stop)
        computes = engines_in_words(settings.base_url, access.operator_key)
        terminal.show(banner(settings, access, num_demo_pools, computes))
        _supervise(settings, fleet, terminal, stop)
    terminal.report("stopped")


def _start_database(
    settings: Settings, account: Account | None, terminal: Terminal, stop: StopSignals, stack: ExitStack
) -> tuple[EmbeddedPostgres | None, Dsns]:
    if settings.database_url is not None:
        dsns = Dsns(settings.database_owner_url or settings.database_url, settings.database_url)
        with stop.interrupts(), terminal.step("connecting to DATABASE_URL"):
            asyncio.run(_check_database("DATABASE_URL", dsns.runtime))
            if dsns.owner != dsns.runtime:
                asyncio.run(_check_database("LORIKEET_DATABASE_OWNER_URL", dsns.owner))
        return None, dsns
    postgres = EmbeddedPostgres(
        settings.data_dir, report=terminal.report, reachable_by=None if account is None else account.gid
    )
    stack.callback(postgres.stop)
    with stop.interrupts(), terminal.step("PostgreSQL"):
        owner = postgres.start()
        with as_root():
            password = runtime_password(settings.data_dir)
        asyncio.run(ensure_runtime_role(owner, password))
    with as_root():
        runtime = runtime_dsn(settings.data_dir)
    assert runtime is not None
    return postgres, Dsns(owner, runtime)


async def _check_database(name: str, dsn: str) -> None:
    """Check that the database can be used. name: the name of the setting.

    Raises DatabaseUnusable: when the database cannot be reached or used.
    """
    try:
        async with await Database.connect(dsn, max_size=1):
            pass
    except (*UNUSABLE, *UNAVAILABLE) as error:
        raise DatabaseUnusable(f"{name}: {in_words(error)}") from None


def _metrics_fd(settings: Settings, terminal: Terminal, stack: ExitStack) -> int | None:
    """Return the descriptor of a socket that listens for metrics, which all gateways accept from.

    Return None where there is to be none, or the port is taken, which is no reason not to start.
    """
    if settings.metrics_address is None:
        return None
    try:
        setting = "LORIKEET_METRICS_LISTEN"
        listener = Listener(*settings.metrics_address, host_setting=setting, port_setting=setting)
        stack.callback(listener.close)
        listener.listen()
    except PortUnavailable as error:
        terminal.report(f"warning: no metrics: {error}")
        return None
    return listener.fd


def _build_fleet(
    settings: Settings,
    gateways: int,
    model_dir: Path,
    dsn: str,
    account: Account | None,
    postgres: EmbeddedPostgres | None,
    listener: Listener,
    metrics_fd: int | None,
    terminal: Terminal,
) -> Fleet:
    private_folder(settings.run_dir, os.geteuid(), os.getegid())
    empty_shared_metrics(settings.metrics_dir)
    environ = gateway_environ(os.environ, settings, model_dir, dsn) | environ_of(account, settings.home_dir)
    agent = Child("agent", agent_command(starting=True), environ, settings.log_dir / "agent.log", account=account)
    worker = Child("worker", worker_command(), environ, settings.log_dir / "worker.log", account=account)
    log = settings.log_dir / "gateway.log"
    names = ["gateway"] if gateways == 1 else [f"gateway {number}" for number in range(1, gateways + 1)]
    command = gateway_command(listener.fd, metrics_fd)
    fds = [listener.fd] if metrics_fd is None else [listener.fd, metrics_fd]
    children = [Child(name, command, environ, log, pass_fds=fds, account=account) for name in names]
    return Fleet(postgres, agent, worker, children, listener, terminal)


def _wait_until_ready(
    settings: Settings, operator_key: str, fleet: Fleet, terminal: Terminal, stop: StopSignals
) -> None:
    """Wait until the gateway answers, and then for an engine of the settings' base model.

    The text that is shown next names the model. Wait for an engine no longer than FIRST_MODEL_S.
    """
    with terminal.step("engine and gateway"):
        started = time.monotonic()
        next_report, give_up = started + PROGRESS_INTERVAL_S, math.inf
        while not stop.requested:
            if is_ready(settings.base_url):
                give_up = min(give_up, time.monotonic() + FIRST_MODEL_S)
                if need_not_wait(settings.base_url, operator_key, settings.model_name):
                    break
                if time.monotonic() > give_up:
                    name = settings.model_name
                    terminal.report(f"warning: no engine of {name} is ready yet: `lorikeet pool show {name}` says why")
                    break
            fleet.tend(stop, starting=True)
            if time.monotonic() > next_report:
                terminal.report(f"engine and gateway: still loading, {time.monotonic() - started:.0f} s")
                next_report += PROGRESS_INTERVAL_S
            time.sleep(PROBE_INTERVAL_S)
        if stop.requested:
            raise StopRequested
    fleet.record_ready(agent_command(starting=False))


def _supervise(settings: Settings, fleet: Fleet, terminal: Terminal, stop: StopSignals) -> None:
    with contextlib.suppress(StopRequested):
        while not stop.requested:
            fleet.tend(stop)
            bound_logs(settings.log_dir)
            time.sleep(TEND_INTERVAL_S)
    duck = f"requests are taken for {settings.lame_duck_seconds:g} s more, then " if settings.lame_duck_seconds else ""
    terminal.report(f"stopping: {duck}running requests get up to {settings.drain_seconds:g} s (Ctrl-C again to hurry)")
