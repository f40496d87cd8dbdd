"""Bodies and replies about previews of an experiment: a unit's arm, the units that an effect needs, and calibrations.

Shapes, and no meaning.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.admin.experiments.wire import Coverage, ExperimentWarning, MetricName, Unit
from gateway.domain.experiments.assignment import Reason
from gateway.domain.experiments.definition import (
    MAX_ALPHA,
    MAX_ARMS,
    MAX_MIN_DAYS,
    MAX_PRIMARY,
    MAX_TIGHTEST_AT,
    MAX_WINDOW_SECONDS,
    MIN_ALPHA,
    MIN_TIGHTEST_AT,
    MIN_WINDOW_SECONDS,
)
from gateway.http.explain import PATTERN_WORDS

MAX_RUNS = 2_000
MAX_PAST_DAYS = 90

Past = Literal["unit", "api_key", "request"]
"""The things that count as one unit of the past.

unit: the units of the project's experiments. The ledger alone knows no units: there each API key, or each request, is
taken for one. In feedback, each unit or request with a vote is one.
"""
PastDays = Annotated[int, Meta(ge=1, le=MAX_PAST_DAYS)]
Id = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=64,
        pattern=r"\A[a-zA-Z0-9_-]+\Z",
        extra={PATTERN_WORDS: "an id: letters, digits, '_' and '-'"},
    ),
]


class PreviewExperiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A question before the start: the arm of a unit, or the units and days that an effect needs."""

    experiment_id: Id | None = None
    """The experiment whose arm a unit would get, and whose definition is taken for the size; needed with `unit`."""
    unit: Unit | None = None
    """A unit whose arm is wanted. It is neither stored nor logged."""
    metric: MetricName | None = None
    """The metric whose effect is to be found, of the ledger or of the project's feedback; needed with
    `relative_effect`."""
    relative_effect: Annotated[float, Meta(gt=0, le=10)] | None = None
    """The effect to be found in either direction, as a part of the metric's mean: 0.05 is 5 %."""
    power: Annotated[float, Meta(ge=0.5, le=0.99)] = 0.8
    """The probability with which the effect is to be found."""
    alpha: Annotated[float, Meta(ge=MIN_ALPHA, le=MAX_ALPHA)] | None = None
    """The significance level; null: the experiment's level, or 0.05."""
    num_arms: Annotated[int, Meta(ge=2, le=MAX_ARMS)] | None = None
    """Number of equal arms; null: as many as the experiment has, or 2."""
    num_primary: Annotated[int, Meta(ge=1, le=MAX_PRIMARY)] | None = None
    """Number of primary metrics, which share alpha; null: as many as the experiment has, or 1."""
    coverage: Coverage | None = None
    """The part of units that take part, in parts of 10,000; null: the experiment's coverage, or all."""
    outcome_window_seconds: Annotated[int, Meta(ge=MIN_WINDOW_SECONDS, le=MAX_WINDOW_SECONDS)] | None = None
    """Seconds that the outcomes of the last unit count; null: the experiment's window, or none."""
    min_days: Annotated[int, Meta(ge=0, le=MAX_MIN_DAYS)] | None = None
    """Whole days since the start before anything is to be decided; null: the experiment's days, or none."""
    past_days: PastDays = 28
    """Days of the project's past traffic to learn from."""
    past_units: Past | None = None
    """The thing that counts as a unit of the past: `unit`, as experiments of the project knew it, `api_key`, which
    gives no feedback, or `request`. Null: `unit` for feedback and where the project has had experiments, else
    `request`."""


class Assignment(msgspec.Struct, frozen=True):
    """The arm that a unit gets."""

    experiment_id: str
    arm: str
    """The name of the arm."""
    reason: Reason
    """The reason for the arm. A unit with `split` is analysed; each other reason gives the control."""
    epoch: int
    """The number of the set of weights that assigns the unit; 0 where it is not analysed."""


class SizeNeeded(msgspec.Struct, frozen=True, kw_only=True):
    """The units and days that an experiment needs to find an effect."""

    metric: str
    relative_effect: float
    effect: float
    """The effect in the metric's unit."""
    mean: float
    """The metric's mean in the past."""
    deviation: float
    """The standard deviation of one unit's outcome in the past."""
    units_per_arm: int
    """Units of each arm, with intervals that hold at every look; of a feedback metric those with a vote."""
    units: int
    """Units of all arms."""
    units_per_day: float
    """New units a day that take part, going by the past; of a feedback metric those with a vote."""
    days: int | None
    """Whole days since the start until the units have come and their outcome windows are over, at least `min_days`;
    null where no units come."""
    min_days: int
    """Whole days since the start before anything is to be decided."""
    past_units: Past
    """The thing that counted as a unit of the past."""
    past_days: int
    text: str
    """Sentence that says how many units are needed, and for how long."""


class ExperimentPreview(msgspec.Struct, frozen=True):
    """The answer to a question before the start."""

    assignment: Assignment | None
    """The arm of the unit; null where none was named."""
    size: SizeNeeded | None
    """The units and days needed; null where no metric was named, or the past does not tell them."""
    warnings: list[ExperimentWarning]
    """Warnings about the experiment that was named; empty where none was."""
    why_no_size: str | None = None
    """The reason why the past does not tell the size that was asked for, in words; null otherwise."""
    object: Literal["organization.project.experiment.preview"] = "organization.project.experiment.preview"


class CalibrateExperiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The simulation of many experiments by random splits of the project's past units."""

    metric: MetricName
    """A metric of the ledger, without quantile, or of the project's feedback."""
    past_days: PastDays = 28
    """Days of the project's past traffic to learn from."""
    past_units: Past | None = None
    """The thing that counts as a unit of the past: `unit`, as experiments of the project knew it, `api_key`, which
    gives no feedback, or `request`. Null: `unit` for feedback and where the project has had experiments, else
    `request`."""
    alpha: Annotated[float, Meta(ge=MIN_ALPHA, le=MAX_ALPHA)] = 0.05
    tightest_at: Annotated[int, Meta(ge=MIN_TIGHTEST_AT, le=MAX_TIGHTEST_AT)] = 5_000
    """Number of units of both arms at which intervals are tightest."""
    runs: Annotated[int, Meta(ge=1, le=MAX_RUNS)] = 200
    """Number of random splits."""


class EffectFound(msgspec.Struct, frozen=True):
    """The smallest effect that is found in 80 % of experiments that run for `days` days."""

    days: int
    units: int
    """New units of all arms in these days."""
    effect: float
    """The effect in the metric's unit."""
    relative: float | None
    """The effect as a part of the mean; null where the mean is 0."""


class ExperimentCalibration(msgspec.Struct, frozen=True, kw_only=True):
    """Findings about experiments on the project's own traffic."""

    metric: str
    past_units: Past
    """The thing that counted as a unit of the past."""
    num_units: int
    num_days: int
    mean: float
    deviation: float
    """The standard deviation of one unit's outcome."""
    runs: int
    """Number of random splits. Their arms are all alike, so that every proven effect is a false one."""
    false_rate: float
    """The part of the splits in which an interval that holds at every look excluded no effect on any day."""
    false_rate_fixed: float
    """The part of the splits in which an ordinary test, looked at each day, excluded no effect on any day."""
    horizons: list[EffectFound]
    text: str
    """Sentence that says what the calibration found."""
    object: Literal["organization.project.experiment.calibration"] = "organization.project.experiment.calibration"
