"""A gateway in a process of its own that starts in a moment: forked from a server that has imported everything."""

from __future__ import annotations

import multiprocessing
import os
import socket
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from gateway.assembly.app import run_gateway
from gateway.settings import Settings

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["__main__", "tests.faults.gateway_process"])


def start_gateway(
    settings: Settings, dsn: str, listener: socket.socket, metrics: socket.socket, log: Path
) -> ForkServerProcess:
    """As `lorikeet gateway` runs one; the tests' model has no weights to prepare."""
    # Settings check themselves when they are made: they travel as what they are made of.
    values = (str(settings.data_dir), settings.model, settings.model_name, settings.journal_bytes)
    process = _CONTEXT.Process(target=_run, args=(values, dsn, listener, metrics, str(log)), daemon=True)
    process.start()
    return process


def _run(
    values: tuple[str, str, str, int], dsn: str, listener: socket.socket, metrics: socket.socket, log: str
) -> None:
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    data_dir, model, model_name, journal_bytes = values
    settings = Settings(
        data_dir=Path(data_dir), model=model, model_name=model_name, drain_seconds=10, journal_bytes=journal_bytes
    )
    run_gateway(settings, model_dir=Path(model), dsn=dsn, sockets=[listener], metrics_socket=metrics)
