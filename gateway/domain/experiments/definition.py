"""The definition of an experiment (arms, unit, coverage, metrics, analysis): its checks, and the allowed changes."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal, NoReturn

import msgspec

from adapters.ref import check_adapter_name
from gateway.domain.adapters.defaults import NO_DEFAULTS, Defaults
from gateway.domain.errors import InvalidRequest, shortened
from gateway.domain.experiments.allocation import bucket_counts
from gateway.domain.experiments.assignment import NUM_BUCKETS
from gateway.domain.experiments.metrics import METRICS, QUANTILES, read_metric

MAX_ARMS = 8
MAX_PRIMARY, MAX_GUARDRAILS, MAX_SECONDARY = 5, 20, 50
MAX_MODEL_CHARS = 256
SHADOW_ARM = 255
"""The index of the shadow arm, where arms are known by their index: no compared arm has it."""
MAX_METADATA_KEY_CHARS = 64
MIN_ALPHA, MAX_ALPHA = 0.0001, 0.2
MIN_TIGHTEST_AT, MAX_TIGHTEST_AT = 20, 100_000_000
MIN_WINDOW_SECONDS, MAX_WINDOW_SECONDS = 10, 90 * 86_400
MAX_MIN_DAYS = 365
UNIT_SOURCES = ("safety_identifier", "user", "prompt_cache_key", "x-lorikeet-unit", "api_key")
"""The sources of units, beside `metadata.<key>`."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
NAME_WORDS = "1 to 64 lower-case letters, digits, '.', '_' and '-', the first a letter or a digit"
_METADATA = "metadata."

Goal = Literal["increase", "decrease"]
Action = Literal["pause", "alert"]
Role = Literal["primary", "guardrail", "secondary"]


class UnitSource(msgspec.Struct, frozen=True, rename={"source": "from"}, forbid_unknown_fields=True):
    """The place of a request that names the unit, which keeps its arm."""

    source: str
    """One of `UNIT_SOURCES`, or `metadata.<key>`. Sources are never mixed."""


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model and the defaults that an arm serves."""

    model: str
    """A base model, an adapter with or without version, or an alias; never an experiment."""
    defaults: Defaults = NO_DEFAULTS
    mode: Literal["fill", "replace"] = "fill"
    """The fields of a request that take the defaults.

    fill: the fields that the request leaves open.
    replace: also the fields to which the request gives a value.
    """


class Arm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the targets that an experiment compares; the first arm is the control."""

    name: str
    weight: int
    """The arm's weight: its share of the units is the weight divided by the sum of all weights."""
    target: Target
    ended: bool = False


class Shadow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An arm that gets copies of requests. No client gets its replies, and it takes no part in the comparison."""

    name: str
    target: Target
    share: int
    """Parts of 10,000 of the experiment's requests that are copied."""


class Primary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A primary metric: one that decides."""

    metric: str
    goal: Goal


class Guardrail(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A guardrail: a metric that must not become worse."""

    metric: str
    action: Action = "alert"
    margin: float = 0.0
    """The tolerated worsening, as a part of the control's value."""
    goal: Goal | None = None
    """The direction in which the metric gets better; None: the built-in metric's own direction."""


class Metrics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The metrics of an experiment: primary ones, guardrails, and others to look at."""

    primary: tuple[Primary, ...]
    guardrails: tuple[Guardrail, ...] = ()
    secondary: tuple[str, ...] = ()


class Analysis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rules by which an experiment is analysed. They are fixed before the start."""

    alpha: float = 0.05
    """The probability with which an experiment without effects may call a primary metric significant, at any look."""
    tightest_at: int = 5_000
    """Units of all arms at which intervals are tightest."""
    outcome_window_seconds: int = 604_800
    """Seconds after a unit's first exposure in which its outcomes count."""
    min_days: int = 7
    """Days before anything is decided."""


DEFAULT_ANALYSIS = Analysis()


class Experiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The definition of an experiment, as tenants write it."""

    name: str
    model: str
    """The model string by which requests name the experiment, as an alias is named."""
    unit: UnitSource
    arms: tuple[Arm, ...]
    metrics: Metrics
    coverage: int = NUM_BUCKETS
    """Parts of 10,000 of the layer's units that take part."""
    layer: str = "default"
    """Experiments of one layer have no unit in common."""
    holdout: str | None = None
    """The name of a holdout, whose units take part in nothing; None: there is none."""
    analysis: Analysis = DEFAULT_ANALYSIS
    shadow: Shadow | None = None

    @property
    def targets(self) -> list[tuple[str, str, Target]]:
        """The targets of all arms, the shadow arm last: each with its path in the definition and its arm's name."""
        of_arms = [(f"arms[{at}].target", arm.name, arm.target) for at, arm in enumerate(self.arms)]
        return of_arms if self.shadow is None else [*of_arms, ("shadow.target", self.shadow.name, self.shadow.target)]


_KNOWN_METRICS = (
    f"There are {', '.join(METRICS)}, those of times also with {', '.join(f'.{each}' for each in QUANTILES)}, and the "
    "project's feedback metrics."
)


def check_definition(experiment: Experiment, own_metrics: Collection[str] = ()) -> None:
    """Check the rules of a definition that need no database.

    own_metrics: names of the project's metrics that come as feedback.
    Raises InvalidRequest: for the first field that is wrong, by its name.
    """
    for param, name in (("name", experiment.name), ("layer", experiment.layer)):
        _check_name(name, param)
    try:
        check_adapter_name(experiment.model)
    except ValueError as error:
        _refuse("model", str(error))
    if experiment.holdout is not None:
        _check_name(experiment.holdout, "holdout")
    source = experiment.unit.source
    key = source.removeprefix(_METADATA) if source.startswith(_METADATA) else None
    if source not in UNIT_SOURCES and (not key or len(key) > MAX_METADATA_KEY_CHARS):
        _refuse("unit.from", f"The unit comes from {', '.join(UNIT_SOURCES)} or metadata.<key>.")
    _check_within("coverage", experiment.coverage, 1, NUM_BUCKETS)
    _check_arms(experiment)
    _check_metrics(experiment.metrics, own_metrics)
    analysis = experiment.analysis
    _check_within("analysis.alpha", analysis.alpha, MIN_ALPHA, MAX_ALPHA)
    _check_within("analysis.tightest_at", analysis.tightest_at, MIN_TIGHTEST_AT, MAX_TIGHTEST_AT)
    _check_within(
        "analysis.outcome_window_seconds", analysis.outcome_window_seconds, MIN_WINDOW_SECONDS, MAX_WINDOW_SECONDS
    )
    _check_within("analysis.min_days", analysis.min_days, 0, MAX_MIN_DAYS)


def check_change(before: Experiment, after: Experiment) -> None:
    """Check a change of an experiment that has started.

    Possible are more coverage, other weights, an arm ended, guardrails added, and another share of requests for the
    shadow arm.

    The definitions before and after are valid.
    Raises InvalidRequest: for the first field that may not change in this way.
    """
    for param in ("name", "model", "unit", "layer", "holdout", "analysis"):
        if getattr(before, param) != getattr(after, param):
            _refuse(param, f"`{param}` cannot change after the start.")
    if after.coverage < before.coverage:
        _refuse("coverage", "Coverage can only grow: units that are exposed keep their arm.")
    if len(before.arms) != len(after.arms):
        _refuse("arms", "Arms cannot be added or removed after the start. An arm can be ended.")
    for at, (old, new) in enumerate(zip(before.arms, after.arms, strict=True)):
        for name in ("name", "target"):
            if getattr(old, name) != getattr(new, name):
                _refuse(f"arms[{at}].{name}", f"The {name} of an arm cannot change after the start.")
        if old.ended and not new.ended:
            _refuse(f"arms[{at}].ended", "An arm that has ended does not come back.")
    _check_shadow_change(before.shadow, after.shadow)
    if before.metrics.primary != after.metrics.primary:
        _refuse("metrics.primary", "Primary metrics are declared before the start.")
    if before.metrics.secondary != after.metrics.secondary:
        _refuse("metrics.secondary", "Secondary metrics are declared before the start.")
    if after.metrics.guardrails[: len(before.metrics.guardrails)] != before.metrics.guardrails:
        _refuse("metrics.guardrails", "Guardrails can only be added, after those that there are.")


def _check_arms(experiment: Experiment) -> None:
    arms = experiment.arms
    if not 2 <= len(arms) <= MAX_ARMS:
        _refuse("arms", f"An experiment has 2 to {MAX_ARMS} arms; the first is the control.")
    for at, arm in enumerate(arms):
        _check_name(arm.name, f"arms[{at}].name")
        if arm.name in {each.name for each in arms[:at]}:
            _refuse(f"arms[{at}].name", "Two arms have the same name.")
        _check_within(f"arms[{at}].weight", arm.weight, 0, 1_000_000)
        if arm.ended and arm.weight:
            _refuse(f"arms[{at}].weight", "An arm that has ended has the weight 0.")
    if arms[0].ended:
        _refuse("arms[0].ended", "The control cannot end: stop the experiment instead.")
    if sum(arm.weight > 0 for arm in arms) < 2:
        empty = next((at for at, arm in enumerate(arms) if not arm.weight and not arm.ended), None)
        param = "arms" if empty is None else f"arms[{empty}].weight"
        _refuse(param, "At least two arms need a weight above 0.")
    for at, num_buckets in enumerate(bucket_counts([arm.weight for arm in arms])):
        if arms[at].weight and not num_buckets:
            _refuse(
                f"arms[{at}].weight",
                "The arm's weight is too small beside the others: less than 1 in 10,000 units would get the arm.",
            )
    shadow = experiment.shadow
    if shadow is not None:
        _check_name(shadow.name, "shadow.name")
        if shadow.name in {arm.name for arm in arms}:
            _refuse("shadow.name", "An arm has the same name.")
        _check_within("shadow.share", shadow.share, 0, NUM_BUCKETS)
    for place, _, target in experiment.targets:
        if not 1 <= len(target.model) <= MAX_MODEL_CHARS:
            _refuse(f"{place}.model", f"A model string has 1 to {MAX_MODEL_CHARS} characters.")
        if target.model == experiment.model:
            _refuse(f"{place}.model", "An arm cannot be the experiment itself.")


def _check_shadow_change(before: Shadow | None, after: Shadow | None) -> None:
    if (before is None) != (after is None):
        _refuse("shadow", "A shadow arm cannot be added or removed after the start. Its share can be 0.")
    if before is not None and after is not None:
        for name in ("name", "target"):
            if getattr(before, name) != getattr(after, name):
                _refuse(f"shadow.{name}", f"The {name} of the shadow arm cannot change after the start.")


def _check_metrics(metrics: Metrics, own: Collection[str]) -> None:
    lists = (
        ("primary", [each.metric for each in metrics.primary], 1, MAX_PRIMARY),
        ("guardrails", [each.metric for each in metrics.guardrails], 0, MAX_GUARDRAILS),
        ("secondary", list(metrics.secondary), 0, MAX_SECONDARY),
    )
    for name, listed, least, most in lists:
        if not least <= len(listed) <= most:
            _refuse(f"metrics.{name}", f"There are {least} to {most} {name} metrics.")
        for at, metric in enumerate(listed):
            param = f"metrics.{name}[{at}]" + ("" if name == "secondary" else ".metric")
            if read_metric(metric, own) is None:
                _refuse(param, f"There is no metric `{shortened(metric)}`. {_KNOWN_METRICS}")
            if metric in listed[:at]:
                _refuse(param, "The metric is listed twice.")
    for at, guardrail in enumerate(metrics.guardrails):
        _check_within(f"metrics.guardrails[{at}].margin", guardrail.margin, 0, 10)
        if guardrail.goal is None and guardrail.metric.split(".")[0] not in METRICS:
            _refuse(f"metrics.guardrails[{at}].goal", "Say which way the metric is better: increase or decrease.")


def _check_name(name: str, param: str) -> None:
    if _NAME.fullmatch(name) is None:
        _refuse(param, f"A name has {NAME_WORDS}.")


def _check_within(param: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:  # not a number is within nothing
        _refuse(param, f"`{param}` is from {least} to {most}.")


def _refuse(param: str, message: str) -> NoReturn:
    raise InvalidRequest(message, param=param)
