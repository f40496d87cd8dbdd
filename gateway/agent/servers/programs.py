"""The programs of servers of other makers on this host."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import structlog

from gateway.domain.pools.drivers import Driver
from gateway.settings import Settings

LLAMA_WHEEL = "xllamacpp"
"""The Python package that holds llama.cpp's server."""

Programs = Mapping[Driver, tuple[str, ...]]
"""The beginning of the command that starts a server, by its driver."""

log = structlog.get_logger(__name__)


def find_programs(settings: Settings, environ: Mapping[str, str] = os.environ) -> Programs:
    """Return the servers' programs on this host: those that settings name, else those on the PATH, else a wheel's.

    environ: the environment, whose PATH is looked through.
    """
    found: dict[Driver, tuple[str, ...]] = {}
    named: tuple[tuple[Driver, str, str], ...] = (
        ("llamacpp", settings.llama_server, "llama-server"),
        ("vllm", settings.vllm, "vllm"),
    )
    for driver, path, usual in named:
        program = shutil.which(path or usual, path=environ.get("PATH", os.defpath))
        if program is not None:
            found[driver] = (str(Path(program).absolute()),)
        elif path:
            log.error("program_missing", driver=driver, path=path, error="it is no program that can be run")
        elif driver == "llamacpp" and importlib.util.find_spec(LLAMA_WHEEL) is not None:
            found[driver] = (sys.executable, "-m", "gateway.agent.servers.llama_main")
    return found
