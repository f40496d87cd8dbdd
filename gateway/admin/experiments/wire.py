"""The shapes of bodies and replies about experiments, layers, holdouts and feedback metrics.

Bodies become `gateway.domain.experiments.definition.Experiment`, which has the same fields. Results, health and
previews are in `wire_results` and `wire_previews`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.admin.adapters.adapter_settings import MAX_SYSTEM_PROMPT_CHARS
from gateway.domain.experiments.assignment import NUM_BUCKETS
from gateway.domain.experiments.definition import (
    MAX_ALPHA,
    MAX_ARMS,
    MAX_GUARDRAILS,
    MAX_METADATA_KEY_CHARS,
    MAX_MIN_DAYS,
    MAX_MODEL_CHARS,
    MAX_PRIMARY,
    MAX_SECONDARY,
    MAX_TIGHTEST_AT,
    MAX_WINDOW_SECONDS,
    MIN_ALPHA,
    MIN_TIGHTEST_AT,
    MIN_WINDOW_SECONDS,
    NAME_WORDS,
)
from gateway.domain.experiments.states import State
from gateway.http.explain import PATTERN_WORDS
from gateway.http.fields import MinP, NumTokens, Penalty, RepetitionPenalty, Temperature, TopK, TopP

MAX_WEIGHT = 1_000_000
MAX_METRIC_CHARS = 80
MAX_DESCRIPTION_CHARS = 500
MAX_LABELS = 50
MAX_LABEL_CHARS = 64
MAX_NUMBER = 1_000_000.0
"""The largest value of a vote in numbers, in either direction."""

_PATTERN = "[a-z0-9][a-z0-9._-]{0,63}"
Name = Annotated[
    str,
    Meta(
        pattern=rf"\A{_PATTERN}\Z",
        min_length=1,
        max_length=64,
        extra_json_schema={"pattern": f"^{_PATTERN}$"},
        extra={PATTERN_WORDS: NAME_WORDS},
    ),
]
"""1 to 64 lower-case letters, digits, dots, underscores and hyphens, the first a letter or digit."""
MODEL_PATTERN = r"\A[^\x00-\x20]+\Z"
ModelString = Annotated[
    str,
    Meta(
        pattern=MODEL_PATTERN,
        min_length=1,
        max_length=MAX_MODEL_CHARS,
        extra_json_schema={"pattern": r"^[^\u0000-\u0020]+$"},
        extra={PATTERN_WORDS: "a model string without spaces and control characters"},
    ),
]
Unit = Annotated[
    str,
    Meta(
        pattern=r"\A[^\x00]+\Z",
        min_length=1,
        max_length=512,
        extra_json_schema={"pattern": r"^[^\u0000]+$"},
        extra={PATTERN_WORDS: "a string without a NUL character"},
    ),
]
MetricName = Annotated[str, Meta(min_length=1, max_length=MAX_METRIC_CHARS)]
Weight = Annotated[int, Meta(ge=0, le=MAX_WEIGHT)]
Coverage = Annotated[int, Meta(ge=1, le=NUM_BUCKETS)]
Share = Annotated[int, Meta(ge=0, le=NUM_BUCKETS)]
Goal = Literal["increase", "decrease"]
Mode = Literal["fill", "replace"]

# ---- bodies


class SetUnit(msgspec.Struct, frozen=True, rename={"source": "from"}, forbid_unknown_fields=True):
    """The place in a request from which the unit that keeps its arm is read."""

    source: Annotated[
        str,
        Meta(
            pattern=r"\A[^\x00-\x1f]+\Z",
            min_length=1,
            max_length=len("metadata.") + MAX_METADATA_KEY_CHARS,
            extra_json_schema={"pattern": r"^[^\u0000-\u001f]+$"},
            extra={PATTERN_WORDS: "a string without control characters"},
        ),
    ]
    """`safety_identifier`, `user`, `prompt_cache_key`, `x-lorikeet-unit` (a header), `api_key`, or `metadata.<key>`.
    Requests without a value there get the control and are not analysed."""


class SetArmDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values that an arm gives to requests."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    max_tokens: NumTokens | None = None
    """The most tokens that a request generates, where there is room."""
    system_prompt: Annotated[str, Meta(min_length=1, max_length=MAX_SYSTEM_PROMPT_CHARS)] | None = None
    """The first message of a conversation."""


class SetTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model and the values that an arm serves."""

    model: ModelString
    """A base model, `<base>:<adapter>`, `<base>:<adapter>@<version>`, or an alias; never an experiment. The version is
    settled at the start: an alias or an adapter that moves later does not move the arm."""
    defaults: SetArmDefaults = SetArmDefaults()
    """Values of the arm, which win over the adapter's."""
    mode: Mode = "fill"
    """`fill`: defaults are for fields that a request leaves open. `replace`: they also replace what a request gives."""


class SetArm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An arm: a model with its settings, which the experiment compares with others."""

    name: Name
    weight: Weight
    """The arm's weight: its share of the units is the weight divided by the sum of all weights."""
    target: SetTarget
    ended: bool = False
    """True once the arm has ended: its units get the control and are no longer analysed. Its weight is then 0."""


class SetShadow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An arm that gets copies of requests. Nobody gets its replies, and it takes no part in the comparison."""

    name: Name
    """A name that no arm has."""
    target: SetTarget
    share: Share = NUM_BUCKETS
    """The part of the experiment's requests that are copied, in parts of 10,000. Each copy is billed to the project in
    the service tier `shadow`. Copies run after their requests, a few at a time; copies without room are
    dropped and counted."""


class SetPrimary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A primary metric: one by which the experiment is decided."""

    metric: MetricName
    """A built-in metric, such as `cost_nanos` or `ttft_ms.p95`, or a feedback metric of the project."""
    goal: Goal


class SetGuardrail(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A metric that must not become worse."""

    metric: MetricName
    action: Literal["pause", "alert"] = "alert"
    """`pause`: the experiment pauses itself within seconds once harm is proven. `alert`: results only report the
    harm."""
    margin: Annotated[float, Meta(ge=0, le=10)] = 0.0
    """The tolerated worsening, as a part of the control's value: 0.1 is 10 %."""
    goal: Goal | None = None
    """The direction in which the metric gets better. Null: the built-in metric's own direction.

    A feedback metric needs a goal.
    """


class SetMetrics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The metrics that are declared before the start."""

    primary: Annotated[tuple[SetPrimary, ...], Meta(min_length=1, max_length=MAX_PRIMARY)]
    """Metrics that decide. More of them make each harder to prove, since they share `analysis.alpha`."""
    guardrails: Annotated[tuple[SetGuardrail, ...], Meta(max_length=MAX_GUARDRAILS)] = ()
    """Metrics that must not become worse, each judged on its own."""
    secondary: Annotated[tuple[MetricName, ...], Meta(max_length=MAX_SECONDARY)] = ()
    """Metrics to look at. Effects on them are marked as discoveries by a rule that keeps false ones few."""


class SetAnalysis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of the statistics."""

    alpha: Annotated[float, Meta(ge=MIN_ALPHA, le=MAX_ALPHA)] = 0.05
    """The probability with which an experiment without effects may ever call a primary metric proven, however often
    anybody looks."""
    tightest_at: Annotated[int, Meta(ge=MIN_TIGHTEST_AT, le=MAX_TIGHTEST_AT)] = 5_000
    """Number of units of all arms at which intervals are tightest: the number that you expect."""
    outcome_window_seconds: Annotated[int, Meta(ge=MIN_WINDOW_SECONDS, le=MAX_WINDOW_SECONDS)] = 604_800
    """Seconds after a unit's first request in which its outcomes count; afterwards the unit is in the results."""
    min_days: Annotated[int, Meta(ge=0, le=MAX_MIN_DAYS)] = 7
    """Whole days before anything is to be decided, so that the results contain weekdays and weekends."""


class CreateExperiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new experiment: a draft, of which nothing is served before its start."""

    name: Name
    """A name that no other experiment of the project has."""
    model: Name
    """The model string by which requests name the experiment. It may be an alias of the project, which then stands for
    the experiment from the start on."""
    unit: SetUnit
    arms: Annotated[tuple[SetArm, ...], Meta(min_length=2, max_length=MAX_ARMS)]
    """The arms; the first is the control, to which all others are compared."""
    metrics: SetMetrics
    coverage: Coverage = NUM_BUCKETS
    """The part of the units that take part, in parts of 10,000. All others get the control and are not analysed."""
    layer: Name = "default"
    """Experiments of one layer have no unit in common. The layer `default` is made when it is first named."""
    holdout: Name | None = None
    """A holdout of the project, whose units do not take part in the experiment."""
    analysis: SetAnalysis = SetAnalysis()
    shadow: SetShadow | None = None
    """An arm whose replies nobody gets, to try a model on live requests before clients get its replies."""


class ModifyExperiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of the definition, each of which replaces the former one whole; a field that is left out stays.

    After the start only these may change: more coverage, weights, an arm ended, guardrails added, the share of the
    shadow arm.
    """

    version: Annotated[int, Meta(ge=1, le=2**31 - 1)] | UnsetType = UNSET
    """The version of the definition that the change was made for. If there is a later one by now, the change is refused
    as a conflict."""
    name: Name | UnsetType = UNSET
    model: Name | UnsetType = UNSET
    unit: SetUnit | UnsetType = UNSET
    arms: Annotated[tuple[SetArm, ...], Meta(min_length=2, max_length=MAX_ARMS)] | UnsetType = UNSET
    """All arms, also unchanged ones. New weights are for units that were not exposed yet."""
    metrics: SetMetrics | UnsetType = UNSET
    """All metrics, also unchanged ones."""
    coverage: Coverage | UnsetType = UNSET
    layer: Name | UnsetType = UNSET
    holdout: Name | UnsetType | None = UNSET
    analysis: SetAnalysis | UnsetType = UNSET
    shadow: SetShadow | UnsetType | None = UNSET
    """The whole shadow arm; null removes it from a draft."""


class DecideExperiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arm that everybody gets from now on."""

    arm: Name
    """The name of an arm. The experiment's model string becomes an alias of this arm's model."""


class CreateFeedbackMetric(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new metric that comes as feedback."""

    name: Name
    """A name that no built-in metric has, without a dot."""
    type: Literal["boolean", "number", "label"]
    """The kind of value that votes have."""
    goal: Goal
    """The direction in which the metric gets better."""
    kind: Literal["mean", "ratio"] = "mean"
    """`mean`: a unit's value is the sum of its votes. `ratio`: votes are averaged over all votes, whoever cast them."""
    least: Annotated[float, Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)] | None = None
    """The smallest value of a vote, for the type `number` alone; null for no bound."""
    most: Annotated[float, Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)] | None = None
    """The largest value of a vote, for the type `number` alone; null for no bound."""
    labels: (
        Annotated[
            dict[
                Annotated[str, Meta(min_length=1, max_length=MAX_LABEL_CHARS)],
                Annotated[float, Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)],
            ],
            Meta(min_length=1, max_length=MAX_LABELS),
        ]
        | None
    ) = None
    """The number that each label stands for; for the type `label` alone."""
    description: Annotated[str, Meta(max_length=MAX_DESCRIPTION_CHARS)] = ""


class CreateLayer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new layer."""

    name: Name


class CreateHoldout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new holdout."""

    name: Name
    size: Annotated[int, Meta(ge=1, le=NUM_BUCKETS)]
    """The part of all units that is held out, in parts of 10,000. It never changes."""


class ForgetUnit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The unit that the project's experiments are to forget."""

    unit: Unit
    """The unit as requests name it. It is neither stored nor logged."""


# ---- replies


class ExperimentUnit(msgspec.Struct, frozen=True, rename={"source": "from"}):
    """The place in a request from which the unit that keeps its arm is read."""

    source: str
    """`safety_identifier`, `user`, `prompt_cache_key`, `x-lorikeet-unit`, `api_key`, or `metadata.<key>`."""


class ArmDefaults(msgspec.Struct, frozen=True):
    """Values that an arm gives to requests; null where the arm says nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    system_prompt: str | None = None


class ExperimentTarget(msgspec.Struct, frozen=True):
    """The model and the values that an arm serves."""

    model: str
    """The model string as it was written."""
    defaults: ArmDefaults
    mode: Mode
    """`fill`: defaults are for fields that a request leaves open. `replace`: they also replace what a request gives."""


class Served(msgspec.Struct, frozen=True):
    """The model that an arm has served since the start of the experiment."""

    model: str
    """The model string with the version: `<base>` or `<base>:<adapter>@<version>`."""
    pool: str
    """The name of the pool."""
    adapter: str | None
    """The name of the adapter; null for the base model."""
    version: int | None


class ExperimentArm(msgspec.Struct, frozen=True):
    """An arm: a model with its settings, which the experiment compares with others."""

    name: str
    weight: int
    """The arm's weight: its share of new units is the weight divided by the sum of all weights."""
    ended: bool
    """True once the arm has ended: its units get the control and are no longer analysed."""
    target: ExperimentTarget
    serves: Served | None
    """The model that is served, settled at the start; null for a draft."""
    share: float
    """The arm's part of new units, from 0 to 1."""


class ExperimentShadow(msgspec.Struct, frozen=True):
    """An arm that gets copies of requests, and whose replies nobody gets."""

    name: str
    target: ExperimentTarget
    share: int
    """The part of the experiment's requests that are copied, in parts of 10,000."""
    serves: Served | None
    """The model that is served, settled at the start; null for a draft."""


class PrimaryMetric(msgspec.Struct, frozen=True):
    """A primary metric: one by which the experiment is decided."""

    metric: str
    goal: Goal


class GuardrailMetric(msgspec.Struct, frozen=True):
    """A metric that must not become worse."""

    metric: str
    action: Literal["pause", "alert"]
    margin: float
    """The tolerated worsening, as a part of the control's value."""
    goal: Goal | None
    """The direction in which the metric gets better; null: the built-in metric's own direction."""


class ExperimentMetrics(msgspec.Struct, frozen=True):
    """The metrics of an experiment."""

    primary: list[PrimaryMetric]
    guardrails: list[GuardrailMetric]
    secondary: list[str]


class ExperimentAnalysis(msgspec.Struct, frozen=True):
    """The settings of the statistics."""

    alpha: float
    tightest_at: int
    outcome_window_seconds: int
    min_days: int


class StopReason(msgspec.Struct, frozen=True):
    """The harm that paused an experiment."""

    metric: str
    """The metric of the guardrail that found harm."""
    arm: str | None
    """The name of the arm that did harm."""
    at: int | None
    """Unix seconds at which the experiment paused itself."""
    text: str
    """The finding in words."""


class ExperimentWarning(msgspec.Struct, frozen=True):
    """A fault of an experiment for which its start will be refused, or its results will say nothing."""

    param: str | None
    """The field of the definition that the warning is about."""
    text: str
    """The warning in words."""


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment of a project."""

    id: str
    name: str
    model: str
    """The model string by which requests name the experiment."""
    state: State
    """`draft`: nothing is served. `running`: units are assigned. `paused`: all units get the control, and their arms
    again later. `stopped`: all get the control for good. `decided`: the model string is an alias of the chosen arm's
    target. `archived`: the experiment is only kept."""
    possible: list[Literal["start", "pause", "stop", "decide", "archive", "change", "delete"]]
    """Actions that the experiment's state allows."""
    version: int
    """The number of the latest change of the definition."""
    unit: ExperimentUnit
    coverage: int
    """The part of the units that take part, in parts of 10,000."""
    layer: str
    holdout: str | None
    arms: list[ExperimentArm]
    """The arms; the first is the control."""
    shadow: ExperimentShadow | None
    """The shadow arm; null where there is none."""
    metrics: ExperimentMetrics
    analysis: ExperimentAnalysis
    enrolling: bool
    """False for some seconds while weights change: units that were not exposed yet get the control."""
    next_weights: list[int] | None
    """The weights that new units will get once all gateways are ready for them; null unless a change is under way."""
    why: StopReason | None
    """The reason for which the experiment paused itself; null where a person paused it, or nobody did."""
    decided_arm: str | None
    """The name of the arm that was chosen."""
    days: int
    """Whole days since the start, up to the stop; 0 before the start."""
    created_at: int
    """Unix seconds."""
    started_at: int | None
    """Unix seconds; null before the first start."""
    stopped_at: int | None
    """Unix seconds; null while the experiment was not stopped."""
    decided_at: int | None
    """Unix seconds; null while no arm was chosen."""
    changed_at: int
    """Unix seconds."""
    warnings: list[ExperimentWarning] | None = None
    """Things that would refuse the start of a draft now (an arm that nothing serves, a model string or units that
    another experiment holds), and things that would make results say nothing (arms that serve the same). Null in lists.
    """
    object: Literal["organization.project.experiment"] = "organization.project.experiment"


class DeletedExperiment(msgspec.Struct, frozen=True):
    """A draft of an experiment that was deleted."""

    id: str
    deleted: Literal[True] = True
    object: Literal["organization.project.experiment.deleted"] = "organization.project.experiment.deleted"


class FeedbackMetric(msgspec.Struct, frozen=True):
    """A metric that comes as feedback."""

    id: str
    """The metric's name."""
    name: str
    type: Literal["boolean", "number", "label"]
    goal: Goal
    """The direction in which the metric gets better."""
    kind: Literal["mean", "ratio"]
    """`mean`: a unit's value is the sum of its votes. `ratio`: votes are averaged over all votes, whoever cast them."""
    least: float | None
    most: float | None
    labels: dict[str, float] | None
    """The number that each label stands for."""
    description: str
    created_at: int
    """Unix seconds."""
    object: Literal["organization.project.feedback_metric"] = "organization.project.feedback_metric"


class DeletedFeedbackMetric(msgspec.Struct, frozen=True):
    """A feedback metric that was deleted."""

    name: str
    deleted: Literal[True] = True
    object: Literal["organization.project.feedback_metric.deleted"] = "organization.project.feedback_metric.deleted"


class ExperimentLayer(msgspec.Struct, frozen=True):
    """A set of experiments that have no unit in common."""

    id: str
    """The layer's name."""
    name: str
    free: int
    """The part of the units that no experiment of the layer owns, in parts of 10,000."""
    experiments: list[str]
    """Names of the experiments that own units of the layer."""
    created_at: int
    """Unix seconds."""
    object: Literal["organization.project.experiment_layer"] = "organization.project.experiment_layer"


class DeletedExperimentLayer(msgspec.Struct, frozen=True):
    """A layer that was deleted."""

    name: str
    deleted: Literal[True] = True
    object: Literal["organization.project.experiment_layer.deleted"] = "organization.project.experiment_layer.deleted"


class ExperimentHoldout(msgspec.Struct, frozen=True):
    """Units that take part in no experiment that names the holdout, for comparison."""

    id: str
    """The holdout's name."""
    name: str
    size: int
    """The part of all units that is held out, in parts of 10,000."""
    created_at: int
    """Unix seconds."""
    object: Literal["organization.project.holdout"] = "organization.project.holdout"


class DeletedExperimentHoldout(msgspec.Struct, frozen=True):
    """A holdout that was deleted."""

    name: str
    deleted: Literal[True] = True
    object: Literal["organization.project.holdout.deleted"] = "organization.project.holdout.deleted"


class ForgottenUnit(msgspec.Struct, frozen=True):
    """The reply after a unit was forgotten."""

    experiments: int
    """Number of experiments that had data of the unit; 0 where none had."""
    forgotten: Literal[True] = True
    object: Literal["organization.project.experiment_unit.forgotten"] = "organization.project.experiment_unit.forgotten"
