"""The demo's experiment: a draft over the two adapters of one demo tenant, ready to be started."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from gateway.db.experiments.experiments import create_experiment
from gateway.db.experiments.layers import create_layer
from gateway.db.experiments.metrics import create_metric
from gateway.db.organization.audit import Author, record
from gateway.domain.experiments.assignment import SEED_BYTES
from gateway.domain.experiments.definition import (
    Analysis,
    Arm,
    Experiment,
    Guardrail,
    Metrics,
    Primary,
    Target,
    UnitSource,
)

if TYPE_CHECKING:
    from gateway.db.pool import Connection

TENANT = "acme"
NAME = "tone"
"""The name of the experiment, and the model string by which requests name it."""
METRIC = "thumbs_up"
LAYER = "demo"
"""The layer of the experiment: a layer of its own leaves all units of `default` to experiments that people try."""


def demo_experiment(base: str) -> Experiment:
    """Return the definition of the experiment. base: the name of the base model that both adapters are for."""
    return Experiment(
        NAME,
        NAME,
        UnitSource("safety_identifier"),
        tuple(Arm(adapter, 1, Target(f"{base}:{adapter}")) for adapter in ("pirate", "json")),
        Metrics((Primary(METRIC, "increase"),), (Guardrail("error_rate", "pause"),), ("completion_tokens",)),
        layer=LAYER,
        analysis=Analysis(tightest_at=100, outcome_window_seconds=60, min_days=0),
    )


async def make_demo_experiment(conn: Connection, author: Author, project_id: str, base: str) -> None:
    """Make the metric and the draft for a tenant that was made in the same transaction."""
    definition = demo_experiment(base)
    about = "whether the user liked the reply"
    await create_metric(conn, project_id, METRIC, type="boolean", goal="increase", kind="mean", description=about)
    metric = {"id": METRIC, "name": METRIC, "type": "boolean", "goal": "increase", "kind": "mean"}
    await create_layer(conn, project_id, LAYER, secrets.token_bytes(SEED_BYTES))
    made = await create_experiment(conn, project_id, definition, secrets.token_bytes(SEED_BYTES))
    assert made is not None, "the tenant is new"
    await record(conn, author, "metric.created", METRIC, project_id=project_id, after=metric)
    shown = {"id": made, "name": NAME, "model": NAME, "state": "draft"}
    await record(conn, author, "experiment.created", made, project_id=project_id, after=shown)
