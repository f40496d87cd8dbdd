"""Changes of an experiment that has started, as changes of its split: no unit that was exposed ever moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.db.experiments.experiments import ExperimentRow, close_enrolment, set_split, split_of
from gateway.db.experiments.layers import lock_slots
from gateway.domain.errors import Conflict
from gateway.domain.experiments.allocation import (
    exposed_units,
    free_slots,
    with_more_coverage,
    with_weights,
    without_arm,
)
from gateway.domain.experiments.definition import Experiment

if TYPE_CHECKING:
    from gateway.db.pool import Connection


async def apply_new_split(conn: Connection, row: ExperimentRow, wanted: Experiment) -> None:
    """Change the split of a locked experiment as its new definition says.

    Ended arms and more coverage hold at once. New weights close the enrolment: the bookkeeper opens it again once every
    gateway knows the units that were exposed.
    Raises Conflict: when the layer has no room, when there are too many epochs, or while weights are being changed.
    """
    before = row.definition
    ended = [at for at, arm in enumerate(wanted.arms) if arm.ended and not before.arms[at].ended]
    more = wanted.coverage - before.coverage
    weights = [arm.weight for arm in wanted.arms]
    are_new = any(new.weight != old.weight for old, new in zip(before.arms, wanted.arms, strict=True) if not new.ended)
    if not (ended or more or are_new):
        return
    if row.next_weights is not None:
        raise Conflict("The weights are being changed. Try again in some seconds.", param="arms")
    split = split_of(row)
    for arm in ended:
        split = without_arm(split, arm)
    if more:
        owners = await lock_slots(conn, row.project_id, before.layer)
        split = with_more_coverage(split, free_slots(before.layer, owners, more, asker=row.name))
    if ended or more:
        await set_split(conn, row.id, split)
    if are_new:
        with_weights(split, weights, exposed_units({}))  # refuses a change now that the bookkeeper could not make later
        await close_enrolment(conn, row.id, weights)
