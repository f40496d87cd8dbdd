"""A host that stands for a Ray cluster of two nodes, over a database of the test's own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.db.pool import Database
from tests.gateway.agent.ray.nodes import Nodes, RayHost, ray_nodes


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with ray_nodes("a", "b") as nodes:
        yield nodes


@pytest.fixture
def host(dsn: str, database: Database, nodes: Nodes) -> Iterator[RayHost]:
    folder = Path(tempfile.mkdtemp(prefix="lk-"))
    host = RayHost(folder, dsn, database, nodes)
    yield host
    host.close()
    shutil.rmtree(folder)
