"""The command and the environment of an engine's process."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from engine.config import EngineConfig
from engine.config.text import whole_flag
from gateway.agent.hardware import VISIBLE
from gateway.settings import MAX_SOCKET_PATH_BYTES, PREFIX
from gateway.settings.secret_files import SUFFIX

Command = Callable[[EngineConfig], Sequence[str]]
"""A function that returns the command that starts an engine of a configuration."""

_ORDER = "CUDA_DEVICE_ORDER"
_NAME_DIGITS = 10


def engine_command(config: EngineConfig) -> list[str]:
    """Return the command of an engine, which gets its settings as one argument."""
    return [sys.executable, "-m", "engine", *whole_flag(config)]


def engine_environ(environ: Mapping[str, str], gpu: str | None = None) -> dict[str, str]:
    """Return the environment of an engine, without settings and secrets: the engine's command has all its settings.

    gpu: what CUDA calls the only accelerator that the engine may see.
    """
    own = ("DATABASE_URL", f"DATABASE_URL{SUFFIX}")
    remaining = {name: value for name, value in environ.items() if name not in own and not name.startswith(PREFIX)}
    return remaining if gpu is None else remaining | {VISIBLE: gpu, _ORDER: "PCI_BUS_ID"}


def address(run_dir: Path, replica_id: str, generation: int) -> str:
    """Return the ZeroMQ endpoint of one start of a replica.

    The name is short, since the path of a socket is limited: it fits below each run_dir in which PostgreSQL's socket
    fits.

    generation: the number of the start.
    """
    name = hashlib.sha256(replica_id.encode()).hexdigest()[:_NAME_DIGITS]
    path = run_dir / f"{name}-{generation:x}"
    assert len(str(path).encode()) <= MAX_SOCKET_PATH_BYTES, path
    return f"ipc://{path}"
