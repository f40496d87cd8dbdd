"""Makes definitions of experiments from request bodies, and replies from rows."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.admin.common import seconds_or_none, unix_seconds
from gateway.admin.experiments import wire
from gateway.admin.paging import wrong_value
from gateway.db.experiments.arms import PinnedArm
from gateway.db.experiments.experiments import ExperimentRow
from gateway.domain.experiments import definition, states


def definition_of(body: wire.CreateExperiment) -> definition.Experiment:
    """Return the definition that a request body gives."""
    return msgspec.convert(msgspec.to_builtins(body), definition.Experiment)


def with_changes(before: definition.Experiment, body: wire.ModifyExperiment) -> definition.Experiment:
    """Return the definition `before` with the values of a request body in place of its own, where the body has any."""
    given: dict[str, Any] = msgspec.to_builtins(body)
    given.pop("version", None)
    return msgspec.convert(msgspec.to_builtins(before) | given, definition.Experiment)


def check_text(body: wire.CreateExperiment | wire.ModifyExperiment) -> None:
    """Check the system prompts of all targets. Raises InvalidRequest: for a NUL, which the database cannot store."""
    targets = {f"arms[{at}]": arm.target for at, arm in enumerate(body.arms or ())}
    if isinstance(body.shadow, wire.SetShadow):
        targets["shadow"] = body.shadow.target
    for place, target in targets.items():
        if "\0" in (target.defaults.system_prompt or ""):
            raise wrong_value(f"{place}.target.defaults.system_prompt", "it must not hold a NUL character")


def experiment_wire(
    row: ExperimentRow, pinned: Sequence[PinnedArm], now: datetime.datetime | None = None
) -> wire.Experiment:
    """Return an experiment as replies show it.

    pinned: the targets of its arms; empty for a draft. now: the time up to which days are counted; None: the present
    time.
    """
    defined = row.definition
    shown = msgspec.convert(
        msgspec.to_builtins(defined, builtin_types=(float,)),
        _Shown,
    )
    return wire.Experiment(
        id=row.id,
        name=row.name,
        model=row.model,
        state=row.state,
        possible=list(states.possible_actions(row.state)),
        version=row.version,
        unit=shown.unit,
        coverage=defined.coverage,
        layer=defined.layer,
        holdout=defined.holdout,
        arms=_arms(defined, shown.arms, pinned[: len(defined.arms)]),
        shadow=_shadow(shown.shadow, pinned[len(defined.arms) :]),
        metrics=shown.metrics,
        analysis=shown.analysis,
        enrolling=row.enrolling,
        next_weights=list(row.next_weights) if row.next_weights is not None else None,
        why=_stop_reason(row),
        decided_arm=None if row.decided_arm is None else defined.arms[row.decided_arm].name,
        days=days_of(row, now),
        created_at=unix_seconds(row.created_at),
        started_at=seconds_or_none(row.started_at),
        stopped_at=seconds_or_none(row.stopped_at),
        decided_at=seconds_or_none(row.decided_at),
        changed_at=unix_seconds(row.changed_at),
    )


def days_of(row: ExperimentRow, now: datetime.datetime | None = None) -> int:
    """Return the whole days since the start of an experiment, up to its stop.

    now: the time up to which days of an experiment without a stop are counted; None: the present time.
    """
    if row.started_at is None:
        return 0
    return max(0, ((row.stopped_at or now or datetime.datetime.now(datetime.UTC)) - row.started_at).days)


def audited(shown: wire.Experiment) -> wire.Experiment:
    """Return an experiment for the audit log, with a mark of each system prompt in place of its text.

    The audit log outlasts the project's content.
    """
    shadow = shown.shadow
    if shadow is not None:
        shadow = msgspec.structs.replace(shadow, target=_with_prompt_digest(shadow.target))
    arms = [msgspec.structs.replace(arm, target=_with_prompt_digest(arm.target)) for arm in shown.arms]
    return msgspec.structs.replace(shown, arms=arms, shadow=shadow)


class _ShownArm(msgspec.Struct):
    name: str
    weight: int
    target: wire.ExperimentTarget
    ended: bool


class _ShownShadow(msgspec.Struct):
    name: str
    target: wire.ExperimentTarget
    share: int


class _Shown(msgspec.Struct):
    """The parts of a definition that replies show unchanged."""

    unit: wire.ExperimentUnit
    arms: list[_ShownArm]
    metrics: wire.ExperimentMetrics
    analysis: wire.ExperimentAnalysis
    shadow: _ShownShadow | None = None


def _arms(
    defined: definition.Experiment, shown: Sequence[_ShownArm], pinned: Sequence[PinnedArm]
) -> list[wire.ExperimentArm]:
    total = sum(arm.weight for arm in defined.arms) or 1
    serves: list[wire.Served | None] = [_served_wire(arm) for arm in pinned] or [None] * len(shown)
    return [
        wire.ExperimentArm(arm.name, arm.weight, arm.ended, arm.target, served, arm.weight / total)
        for arm, served in zip(shown, serves, strict=True)
    ]


def _shadow(shown: _ShownShadow | None, pinned: Sequence[PinnedArm]) -> wire.ExperimentShadow | None:
    if shown is None:
        return None
    return wire.ExperimentShadow(shown.name, shown.target, shown.share, _served_wire(pinned[0]) if pinned else None)


def _served_wire(arm: PinnedArm) -> wire.Served:
    model = arm.pool if arm.adapter is None else f"{arm.pool}:{arm.adapter}@{arm.version}"
    return wire.Served(model, arm.pool, arm.adapter, arm.version)


def _stop_reason(row: ExperimentRow) -> wire.StopReason | None:
    if row.why is None:
        return None
    arm = row.why.get("arm")
    name = row.definition.arms[arm].name if isinstance(arm, int) else arm
    return wire.StopReason(
        str(row.why.get("metric", "")), name, row.why.get("at"), str(row.why.get("text", "A guardrail fired."))
    )


def _with_prompt_digest(target: wire.ExperimentTarget) -> wire.ExperimentTarget:
    text = target.defaults.system_prompt
    if text is None:
        return target
    mark = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    return msgspec.structs.replace(target, defaults=msgspec.structs.replace(target.defaults, system_prompt=mark))
