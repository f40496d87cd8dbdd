"""The command lines and the environments with which `serve` starts its children."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gateway.agent import commands
from gateway.agent.commands import engine_environ
from gateway.observability.metrics import SHARED_METRICS_DIR
from gateway.settings import Settings, variables

# A child finds the model prepared and the database running; the operator's secrets are no business of theirs.
_NOT_INHERITED = frozenset({"LORIKEET_ADMIN_KEY", "LORIKEET_ADMIN_PASSWORD", "LORIKEET_DATABASE_OWNER_URL"})


def engine_command(settings: Settings, model_dir: Path) -> list[str]:
    """Return the command of an engine at LORIKEET_ENGINE_ENDPOINT."""
    return commands.engine_command(msgspec.structs.replace(settings.engine, model_dir=str(model_dir)))


def agent_command(*, starting: bool) -> list[str]:
    """Return the command of this machine's agent, whose engines end with it.

    starting: True: the agent ends with the reason where no engine can be started.
    """
    return [sys.executable, "-m", "gateway.cli", "agent", "--stop-engines", *(["--give-up"] if starting else [])]


def gateway_command(listener_fd: int, metrics_fd: int | None = None) -> list[str]:
    """Return the command of one gateway process on listening sockets that it inherits.

    metrics_fd: the descriptor of the socket for metrics; None: there is none.
    """
    metrics = [] if metrics_fd is None else ["--metrics-fd", str(metrics_fd)]
    return [sys.executable, "-m", "gateway.cli", "gateway", "--fd", str(listener_fd), *metrics]


def worker_command() -> list[str]:
    """Return the command of this machine's worker."""
    return [sys.executable, "-m", "gateway.cli", "worker"]


def gateway_environ(environ: Mapping[str, str], settings: Settings, model_dir: Path, dsn: str) -> dict[str, str]:
    """Return the environment from which a gateway reads these settings, with the prepared model and the database.

    dsn: the connection string of the role that gateways use. It holds a password, and travels here rather than on a
    command line that every user can list.
    """
    effective = msgspec.structs.replace(settings, model=str(model_dir), database_url=dsn)
    values = {name: value for name, value in variables(effective).items() if name not in _NOT_INHERITED}
    return engine_environ(environ) | values | {SHARED_METRICS_DIR: str(settings.metrics_dir)}
