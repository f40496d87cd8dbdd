"""The program of a process that serves one gateway. Imports nothing of the gateway before its clock is set."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from tests.installation.networks import enter


def run(
    settings: dict[str, Any],
    dsn: str,
    listener: socket.socket,
    metrics: socket.socket,
    log: str,
    jumps_s: int,
    network: str = "",
) -> None:
    """Serve as `lorikeet gateway` does; the tests' model has no weights to prepare.

    settings: fields of `Settings`, which is made and checked here.
    jumps_s, network: as in `GatewayProcess`.
    """
    if network:
        enter(network)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if jumps_s:
        assert "gateway" not in sys.modules, "its modules may have kept the right clock"
        _jump(jumps_s)
    from gateway.assembly.app import run_gateway
    from gateway.settings import Settings

    model_dir = Path(settings["model"])
    run_gateway(Settings(**settings), model_dir=model_dir, dsn=dsn, sockets=[listener], metrics_socket=metrics)


def _jump(jumps_s: int) -> None:
    """Make the time of day that this process sees jump back and forth every second."""
    seconds, nanoseconds = time.time, time.time_ns

    def jumped_s() -> int:
        return jumps_s * (int(time.monotonic()) % 2)

    time.time = lambda: seconds() + jumped_s()
    time.time_ns = lambda: nanoseconds() + jumped_s() * 10**9
