"""How `serve` starts its children: their command lines and their environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gateway.observability.metrics import SHARED_METRICS_DIR
from gateway.settings import PREFIX, Settings, variable

# A child finds the model prepared and the database running; the operator's secrets are no business of theirs.
_NOT_INHERITED = frozenset({"admin_key", "admin_password"})


def engine_command(settings: Settings, model_dir: Path) -> list[str]:
    """The engine process of this machine."""
    flags = {
        "--model-dir": str(model_dir),
        "--endpoint": settings.engine_endpoint,
        "--adapter-store": settings.adapter_store,
        "--device": settings.device,
        "--dtype": settings.dtype,
        "--max-model-len": str(settings.max_model_len),
        "--max-num-seqs": str(settings.max_num_seqs),
        "--max-batched-tokens": str(settings.max_batched_tokens),
        "--max-waiting": str(settings.max_waiting),
        "--max-adapters": str(settings.max_adapters),
        "--max-adapter-rank": str(settings.max_adapter_rank),
        "--adapter-host-bytes": str(settings.adapter_host_bytes),
        "--gpu-memory-fraction": str(settings.gpu_memory_fraction),
        "--num-threads": str(settings.num_threads),
        "--num-draft-tokens": str(settings.num_draft_tokens),
    }
    if settings.has_remote_store:
        flags["--adapter-cache-dir"] = str(settings.adapter_cache_dir)
        flags["--adapter-cache-bytes"] = str(settings.adapter_cache_bytes)
    if settings.kv_cache_bytes is not None:
        flags["--kv-cache-bytes"] = str(settings.kv_cache_bytes)
    if settings.adapter_device_bytes is not None:
        flags["--adapter-device-bytes"] = str(settings.adapter_device_bytes)
    return [sys.executable, "-m", "engine", *(part for flag in flags.items() for part in flag)]


def gateway_command(listener_fd: int, metrics_fd: int | None = None) -> list[str]:
    """Return the command of one gateway process on listening sockets that it inherits. metrics_fd: of the socket for
    metrics, where there is one."""
    metrics = [] if metrics_fd is None else ["--metrics-fd", str(metrics_fd)]
    return [sys.executable, "-m", "gateway.cli", "gateway", "--fd", str(listener_fd), *metrics]


def gateway_environ(environ: Mapping[str, str], settings: Settings, model_dir: Path, dsn: str) -> dict[str, str]:
    """The environment in which a gateway reads back these settings, with the model prepared and the database running.

    The DSN holds a password: it travels here rather than on a command line that every user can list.
    """
    effective = msgspec.structs.replace(settings, model=str(model_dir), database_url=dsn)
    variables = {
        variable(name): str(value)
        for name, value in msgspec.structs.asdict(effective).items()
        if value is not None and name not in _NOT_INHERITED
    }
    return engine_environ(environ) | variables | {SHARED_METRICS_DIR: str(settings.metrics_dir)}


def engine_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The engine is told everything by flags: no setting, and no secret among them, reaches it."""
    return {name: value for name, value in environ.items() if name != "DATABASE_URL" and not name.startswith(PREFIX)}
