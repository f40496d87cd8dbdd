"""Warnings about an experiment: reasons that would refuse its start, or that would make its results empty.

None of them refuses anything: a draft may be made before its adapters are there, and two arms that serve the same are
an A/A test.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from gateway.admin.experiments.targets import BadTarget, not_ready_error, resolve_each
from gateway.admin.experiments.wire import ExperimentWarning
from gateway.db.experiments import arms, experiments, layers
from gateway.db.experiments.arms import PinnedArm
from gateway.db.experiments.experiments import ExperimentRow
from gateway.domain.errors import Conflict
from gateway.domain.experiments.allocation import free_slots
from gateway.domain.experiments.definition import Experiment

if TYPE_CHECKING:
    from gateway.db.pool import Connection


async def find_warnings(conn: Connection, organization_id: str, row: ExperimentRow) -> list[ExperimentWarning]:
    """Return the warnings about a draft, or about an experiment that gives units their arms; none about others."""
    defined = row.definition
    if row.state == "draft":
        found = await resolve_each(conn, organization_id, row.project_id, defined)
        pinned = [None if isinstance(each, BadTarget) else each for each in found]
        faults = [
            _warning(not_ready_error(place, name, target.model, str(each)))
            for each, (place, name, target) in zip(found, defined.targets, strict=True)
            if isinstance(each, BadTarget)
        ]
        return [
            *await _model_taken_warnings(conn, row),
            *await _layer_warnings(conn, row),
            *faults,
            *_equal_arm_warnings(defined, pinned),
        ]
    if row.state in ("running", "paused"):
        return _equal_arm_warnings(defined, (await arms.list_arms(conn, [row.id])).get(row.id, []))
    return []


async def _model_taken_warnings(conn: Connection, row: ExperimentRow) -> list[ExperimentWarning]:
    """Return a warning if another experiment has taken the model string of a draft; else none."""
    holder = await experiments.model_holder(conn, row.project_id, row.model, row.id)
    if holder is None:
        return []
    text = (
        f"The experiment '{holder}' has the model string '{row.model}': this draft can start once '{holder}' is "
        "decided, or by another model string."
    )
    return [ExperimentWarning("model", text)]


async def _layer_warnings(conn: Connection, row: ExperimentRow) -> list[ExperimentWarning]:
    """Return a warning if a draft's layer has too few free units; else none."""
    layer = await layers.find_layer(conn, row.project_id, row.definition.layer)
    try:
        free_slots(row.definition.layer, layer.owners if layer is not None else (), row.definition.coverage)
    except Conflict as error:
        return [_warning(error)]
    return []


def _equal_arm_warnings(defined: Experiment, pinned: Sequence[PinnedArm | None]) -> list[ExperimentWarning]:
    """Return warnings about arms that serve the same, and about a control without units.

    pinned: the present target of each arm; None where it cannot be resolved.
    """
    found = []
    shown = [(at, arm) for at, arm in enumerate(defined.arms) if not arm.ended]
    for (before, one), (at, other) in combinations(shown, 2):
        if _is_same(one.target == other.target, pinned[before], pinned[at]):
            text = (
                f"The arms '{one.name}' and '{other.name}' serve the same with the same values: whatever differs "
                "between them is chance, as in an A/A test."
            )
            found.append(ExperimentWarning(f"arms[{at}].target", text))
    if not defined.arms[0].weight:
        text = f"The control '{defined.arms[0].name}' has the weight 0: no new unit gets it to compare others with."
        found.append(ExperimentWarning("arms[0].weight", text))
    return found


def _is_same(is_written_alike: bool, one: PinnedArm | None, other: PinnedArm | None) -> bool:
    """Tell whether two arms serve the same model with the same changes.

    Arms are compared by their present targets, or by their model strings if a target is not known.

    is_written_alike: True if the definition says the same of both, which decides if the target of an arm is not known.
    one, other: the present target of each arm; None: it is not known.
    """
    return is_written_alike if one is None or other is None else one == other


def _warning(error: Conflict) -> ExperimentWarning:
    return ExperimentWarning(error.param, error.message)
