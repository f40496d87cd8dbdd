"""Faults of experiments of an installation under load."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import asyncpg

from gateway.db.experiments.events import LOCK_KEY
from gateway.domain.experiments.definition import Guardrail, Metrics, Primary
from tests.deploy.alerts.scene import (
    FIRES_WITHIN_S,
    Scene,
    add_pool_of,
    begin_experiment,
    is_firing,
    tenant_client,
)
from tests.gateway.experiments.making import ArmOf
from tests.installation.databases import execute
from tests.installation.waiting import wait_until

_NUM_COUNTED = """
    SELECT count(*) FROM experiment_units
    WHERE state IS NOT NULL AND experiment_id = (SELECT id FROM experiments WHERE name = $1)
"""
_DAMAGE = r"""
    UPDATE experiment_units SET state = '\xc1'
    WHERE state IS NOT NULL AND experiment_id = (SELECT id FROM experiments WHERE name = 'damaged')
"""


def experiments_behind(scene: Scene, until: ExitStack) -> None:
    """Hold the lock under which gateways sum up experiments, so that the sums are late."""
    begin_experiment(scene, "behind", (ArmOf("control"), ArmOf("other", "small-1")))
    until.enter_context(_locked(scene.ground.postgres.dsn))
    with tenant_client(scene) as client:
        body = {"model": "behind", "prompt": [5, 6, 7], "max_tokens": 1}
        assert client.post("/v1/completions", json=body | {"user": "ann"}).status_code == 200


def experiment_paused(scene: Scene, until: ExitStack) -> None:
    """Run an experiment of which one arm has no engine, so that its requests are refused."""
    add_pool_of(scene, until, "gone", f"ipc://{scene.ground.folder}/gone.sock")
    metrics = Metrics((Primary("cost_nanos", "decrease"),), (Guardrail("refusal_rate", "pause"),))
    begin_experiment(scene, "harmful", (ArmOf("control"), ArmOf("harm", pool="gone")), metrics=metrics)
    with tenant_client(scene) as client:
        units = itertools.count()

        def keep_asking() -> bool:
            for _ in range(10):
                body = {"model": "harmful", "prompt": [5, 6, 7], "max_tokens": 1, "user": f"unit-{next(units)}"}
                client.post("/v1/completions", json=body)
            return is_firing(scene, "ExperimentPaused")

        wait_until(keep_asking, "the experiment goes on", patience_s=FIRES_WITHIN_S)


def experiment_events_lost(scene: Scene, until: ExitStack) -> None:
    """Damage the row of a unit of an experiment, so that requests of the unit cannot be added to it."""
    dsn = scene.ground.postgres.dsn
    begin_experiment(scene, "damaged", (ArmOf("control"), ArmOf("other", "small-1")))
    until.callback(lambda: asyncio.run(execute(dsn, r"DELETE FROM experiment_units WHERE state = '\xc1'")))
    with tenant_client(scene) as client:
        body = {"model": "damaged", "prompt": [5, 6, 7], "max_tokens": 1, "user": "ann"}
        assert client.post("/v1/completions", json=body).status_code == 200
        wait_until(lambda: asyncio.run(_num_counted(dsn, "damaged")) == 1, "the request is not counted")
        asyncio.run(execute(dsn, _DAMAGE))
        assert client.post("/v1/completions", json=body).status_code == 200


async def _num_counted(dsn: str, name: str) -> int:
    """Return the number of units of an experiment that have a counted request."""
    conn = await asyncpg.connect(dsn)
    try:
        return int(await conn.fetchval(_NUM_COUNTED, name))
    finally:
        await conn.close()


@contextmanager
def _locked(dsn: str) -> Iterator[None]:
    """Hold the lock under which gateways sum up experiments until the context is left."""
    loop = asyncio.new_event_loop()
    conn = loop.run_until_complete(asyncpg.connect(dsn))
    try:
        loop.run_until_complete(conn.execute("SELECT pg_advisory_lock($1)", LOCK_KEY))
        yield
    finally:
        loop.run_until_complete(conn.close())
        loop.close()
