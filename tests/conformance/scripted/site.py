"""A gateway over the engine that plays the scripts, with one tenant, whose responses are stored."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conformance.scripted.model import make_model_folder
from tests.conformance.site import Site
from tests.demo import demo_model_dir
from tests.installation.databases import RUN_VARIABLE, Databases, Keeper, execute, server_dsn
from tests.installation.live_gateway import BASE, gateways_with
from tests.installation.processes import ChildProcess
from tests.installation.tenants import make_key


class PlayingEngine(ChildProcess):
    """The process of the engine that plays scripts."""

    def __init__(self, endpoint: str, model_dir: Path) -> None:
        command = [sys.executable, "-m", "tests.conformance.scripted.engine"]
        super().__init__([*command, "--endpoint", endpoint, "--model-dir", str(model_dir)])

    def stop(self) -> None:
        """End the engine at once."""
        self.kill()


@contextmanager
def playing(folder: Path) -> Iterator[Site]:
    """Give a gateway over the scripted engine until the context is left. folder: the folder for all data."""
    keeper = Keeper()
    os.environ[RUN_VARIABLE] = str(keeper.folder)
    try:
        with Databases(server_dsn(keeper.folder), "conformance") as databases:
            dsn = databases.create("scripted")
            with playing_over(dsn, folder) as site:
                yield site
    finally:
        del os.environ[RUN_VARIABLE]
        keeper.close()


@contextmanager
def playing_over(dsn: str, folder: Path) -> Iterator[Site]:
    """Give a gateway over the scripted engine and an existing database until the context is left."""
    key = asyncio.run(make_key(dsn, "agents"))
    asyncio.run(execute(dsn, f"UPDATE projects SET store_days = 1 WHERE id = '{key.project_id}'"))
    model_dir = make_model_folder(folder / "model", demo_model_dir())

    def make_engine(endpoint: str, model_dir: Path) -> PlayingEngine:
        engine = PlayingEngine(endpoint, model_dir)
        engine.start()
        return engine

    with gateways_with(make_engine, dsn, model_dir, data_dir=folder, max_body_bytes=8 << 20) as installed:
        yield Site(installed.gateway.url, key.secret, "", "", model=BASE)
