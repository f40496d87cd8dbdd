"""The shapes of replies about the findings of an experiment: results, health, exposures and the days so far.

A number that nothing bounds yet is null. An effect is proven once `log_e`, the natural logarithm of its E-value, is at
least ln(1 / alpha).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gateway.domain.experiments.segment_values import Kind
from gateway.domain.experiments.states import State

Role = Literal["primary", "guardrail", "secondary"]
Verdict = Literal["better", "worse", "different", "unclear"]


class Estimate(msgspec.Struct, frozen=True):
    """The mean of one arm."""

    n: int
    """Number of units whose outcome window is over and that have a value."""
    mean: float
    """The mean over units; of a metric per request, the sum over requests by their number."""
    se: float
    """The standard error of the mean."""


class Bounds(msgspec.Struct, frozen=True):
    """An interval that holds at every look; null where nothing bounds it yet."""

    low: float | None
    high: float | None


class ComparisonResult(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of an arm beside the control."""

    metric: str
    role: Role
    """The part that the metric plays in the experiment."""
    arm: str
    """The name of the arm."""
    control: Estimate
    """The control's mean."""
    treatment: Estimate
    """The arm's mean."""
    effect: float
    """The arm's mean less the control's."""
    interval: Bounds
    """The effects that are not excluded at the level `alpha`, however often anybody looks."""
    relative_effect: float | None
    """The effect as a part of the control's mean; null where the mean is 0."""
    relative_interval: Bounds | None
    """The interval as a part of the control's mean; null while that mean may be 0."""
    log_e: float
    """The natural logarithm of the E-value against no effect."""
    p: float
    """The p-value that holds at every look: never to be read without the interval."""
    alpha: float
    """The significance level at which this comparison is judged."""
    verdict: Verdict
    """`better` and `worse` are proven by the metric's goal; `different`: a proven effect on a metric without one."""
    answered: list[float] | None
    """The part of the control's units that have a value, then the part of the arm's units; null while there are no
    units."""
    text: str
    """The comparison in words."""


class JudgedEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The mean of people's votes in one arm, estimated with the help of a judge's votes."""

    num_labelled: int
    """Units about which people and the judge voted."""
    num_judged: int
    """Units about which only the judge voted."""
    mean: float
    """The estimated mean."""
    se: float
    """The standard error of the mean."""
    judge_weight: float
    """The weight of the judge's votes, in the latest set of weights; 0 where they say nothing about people's votes."""


class JudgedResult(msgspec.Struct, frozen=True, kw_only=True):
    """A feedback metric of an arm beside the control, from people's votes about some units and a judge's about many.

    It decides nothing, and holds only where the units about which people voted were drawn at random.
    """

    metric: str
    role: Role
    arm: str
    """The name of the arm."""
    control: JudgedEstimate
    treatment: JudgedEstimate
    effect: float
    """The difference of people's mean votes between arm and control, estimated with the help of the judge's votes."""
    interval: Bounds
    """The effects that are not excluded at the level `alpha`, however often anybody looks."""
    effect_by_people: float
    """The effect measured by the people's votes alone, without the judge."""
    interval_by_people: Bounds
    """The interval of `effect_by_people`."""
    effect_by_judge: float
    """The difference of the judge's own mean votes, which includes the judge's bias."""
    alpha: float
    """The significance level of the intervals."""
    text: str
    """The comparison in words."""


class QuantileBounds(msgspec.Struct, frozen=True):
    """A quantile of one arm, with the bounds of its interval."""

    estimate: float | None
    low: float | None
    high: float | None


class QuantileResult(msgspec.Struct, frozen=True, kw_only=True):
    """A quantile of times of one arm beside the control; each unit has one time."""

    metric: str
    role: Role
    arm: str
    """The name of the arm."""
    control: QuantileBounds
    """The control's quantile, in milliseconds."""
    treatment: QuantileBounds
    """The arm's quantile, in milliseconds."""
    difference: Bounds
    """An interval of the milliseconds by which the arm's quantile exceeds the control's; it holds at every look."""
    alpha: float
    """The significance level of the intervals."""
    verdict: Verdict
    """`better` or `worse` where the difference is proven."""
    text: str
    """The comparison in words."""


class GuardrailResult(msgspec.Struct, frozen=True, kw_only=True):
    """The judgement of a guardrail about an arm."""

    metric: str
    arm: str
    """The name of the arm."""
    action: Literal["pause", "alert"]
    """The action that is taken on harm."""
    verdict: Literal["harmed", "safe", "unclear"]
    """`harmed`: proven worse than the margin allows. `safe`: proven not so. `unclear`: neither is proven yet."""
    log_e: float | None
    """The natural logarithm of the E-value; null for guardrails that are judged by an interval."""
    text: str
    """The judgement in words."""


class ArmResult(msgspec.Struct, frozen=True):
    """The units of one arm."""

    name: str
    units: int
    """The number of units that got the arm."""
    compliance: float | None
    """The part of units that got the whole treatment with each request. Results are of all units. Null without
    units."""


class ShadowTimes(msgspec.Struct, frozen=True):
    """Percentiles of a time of copies that ended well, in milliseconds; null without such copies."""

    p50: float | None
    p95: float | None


class ShadowResult(msgspec.Struct, frozen=True, kw_only=True):
    """The copies of requests that a shadow arm got, beside the arms: it is not compared, since nobody got its replies.

    Copies wait behind requests, so of the times `engine_ms` alone is that of the model. Counts and times are of the
    latest 100,000 rows of the ledger; invoices have all of them, in the service tier `shadow`.
    """

    name: str
    requests: int
    """Copies that were sent to an engine."""
    errors: int
    """Copies that ended in an error."""
    prompt_tokens: int
    completion_tokens: int
    cost_nanos: int
    """The cost of the copies, in billionths of the currency."""
    ttft_ms: ShadowTimes
    """Time to the first token."""
    latency_ms: ShadowTimes
    """Time to the last token."""
    engine_ms: ShadowTimes
    """Time in which the engine worked on a copy."""
    outcomes: dict[str, int]
    """All copies, by what became of them: `answered`; `failed`; never run since too many waited (`full`), it waited too
    long (`late`), the client had left (`client_gone`), a limit or the target refused it (`refused`), no engine took it
    (`unavailable`), the target is gone (`target_gone`), or the gateway stopped (`stopped`)."""


class SegmentArm(msgspec.Struct, frozen=True):
    """The units of one arm in a segment."""

    name: str
    units: int
    expected_units: float
    """The units that the declared shares give, over all epochs."""


class SegmentSplit(msgspec.Struct, frozen=True, kw_only=True):
    """The split of one segment: units whose first request was with one API key, for example."""

    kind: Kind
    value: str
    """The value of the kind, such as `true` of `stream`; `other` stands for all values that are not counted apart."""
    name: str | None
    """The name of the API key; null for other kinds, and for a key that is gone."""
    arms: list[SegmentArm]
    is_srm: bool
    """True if units are not split as declared, found among all segments of the experiment."""
    srm_log_e: float | None
    """The natural logarithm of the E-value against the declared split; null where it is infinite."""


class SegmentResult(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one segment, by the present sums."""

    split: SegmentSplit
    comparisons: list[ComparisonResult]
    """Comparisons of metrics without quantile. A verdict is given where e-BH over all segments of the kind keeps it:
    among many comparisons some look like effects by chance."""


class ExperimentResults(msgspec.Struct, frozen=True, kw_only=True):
    """A look at an experiment. Every number holds however often anybody looks."""

    experiment_id: str
    name: str
    state: State
    version: int
    """The number of the latest change of the definition."""
    looked_at: int
    """Unix seconds of the look."""
    days: int
    """Whole days since the start."""
    conclusion: str
    """The conclusion in words: also what may not be concluded yet."""
    may_decide: bool
    """True once the declared days have passed while units are split as declared."""
    is_srm: bool
    """True if units are not split as declared: nothing else here is to be believed then."""
    srm_log_e: float
    """The natural logarithm of the E-value against the declared split."""
    arms: list[ArmResult]
    comparisons: list[ComparisonResult]
    quantiles: list[QuantileResult]
    guardrails: list[GuardrailResult]
    not_analysed: dict[str, int]
    """Requests that are not analysed, by the reason for which they got their arm."""
    shadow: ShadowResult | None
    """The shadow arm; null where there is none, and in kept looks."""
    judged: list[JudgedResult] = []
    """Feedback metrics by which people and a judge voted; in `comparisons` the same metrics count votes of people and
    programs alone."""
    segments: list[SegmentResult] | None = None
    """The segments of the kind that was asked for; null where none was."""
    object: Literal["organization.project.experiment.results"] = "organization.project.experiment.results"


class TimelineDay(msgspec.Struct, frozen=True):
    """A look at an experiment at the end of a day."""

    day: str
    """The day in UTC, such as 2026-11-24."""
    is_srm: bool
    arms: list[ArmResult]
    comparisons: list[ComparisonResult]
    quantiles: list[QuantileResult]


class ExperimentTimeline(msgspec.Struct, frozen=True):
    """Looks at an experiment at the end of each day, oldest first."""

    experiment_id: str
    data: list[TimelineDay]
    object: Literal["organization.project.experiment.timeline"] = "organization.project.experiment.timeline"


class AgeDay(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of an arm beside the control, on one day since exposure."""

    day: int
    """Days since a unit's first request: 0 for its first 24 hours."""
    control: Estimate
    treatment: Estimate
    effect: float
    """The arm's mean less the control's."""
    interval: Bounds
    """The effects that are not excluded. The intervals of all days hold together, however often anybody looks."""
    relative_effect: float | None
    """The effect as a part of the control's mean; null where the mean is 0."""
    relative_interval: Bounds | None
    """The interval as a part of the control's mean; null while that mean may be 0."""


class AgeResult(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of an arm by days since exposure."""

    metric: str
    role: Role
    arm: str
    """The name of the arm."""
    trend: Literal["fading", "growing", "unclear"]
    """`fading`: the last day's effect is proven to be smaller than the first day's, or turned; `growing`: larger."""
    text: str
    """The trend in words."""
    days: list[AgeDay]


class ExperimentAges(msgspec.Struct, frozen=True):
    """Effects by days since units' first requests, over the units whose outcome window is over."""

    experiment_id: str
    data: list[AgeResult]
    """The effects by metric and arm; empty where the outcome window has less than two days."""
    object: Literal["organization.project.experiment.ages"] = "organization.project.experiment.ages"


class ExposureCount(msgspec.Struct, frozen=True):
    """Units that were exposed first on one day."""

    day: str
    """The day in UTC, such as 2026-11-24."""
    arm: str
    epoch: int
    """The number of the set of weights that assigned the units, from 1."""
    units: int
    delivered: int
    """Units that got the whole treatment with each of their requests."""


class ExperimentExposures(msgspec.Struct, frozen=True):
    """Units by day, arm and epoch, the oldest day first."""

    experiment_id: str
    units: int
    """All units."""
    data: list[ExposureCount]
    object: Literal["organization.project.experiment.exposures"] = "organization.project.experiment.exposures"


class ArmHealth(msgspec.Struct, frozen=True):
    """The split of one arm."""

    name: str
    units: int
    expected_units: float
    """The units that the declared shares give, over all epochs."""
    compliance: float | None
    """The part of units that got the whole treatment with each request; null without units."""


class BusyUnit(msgspec.Struct, frozen=True):
    """A unit with more than one per cent of the requests: perhaps a placeholder such as `anonymous`."""

    digest: str
    """The unit's digest under the project's key, in hexadecimal."""
    num_requests: int
    share: float
    """The unit's part of the requests, from 0 to 1."""


class ExperimentHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Signs that an experiment works as declared, or does not."""

    experiment_id: str
    status: Literal["healthy", "warning", "broken"]
    """`broken`: results are not to be believed. `warning`: something deserves a look."""
    problems: list[str]
    """Faults in words; empty when nothing is wrong."""
    is_srm: bool
    """True if units are not split as declared."""
    srm_log_e: float
    segments: list[SegmentSplit]
    """Segments whose units are not split as declared, of all kinds."""
    arms: list[ArmHealth]
    not_analysed: dict[str, int]
    """Requests that are not analysed, by the reason for which they got their arm."""
    analysed_units: int
    answer_rate: float | None
    """The part of units with any feedback; null without units."""
    busy_units: list[BusyUnit]
    num_waiting: int
    """Events that are not in the sums yet."""
    lag_seconds: float
    """Age of the oldest event that is not in the sums yet; 0 when none waits."""
    object: Literal["organization.project.experiment.health"] = "organization.project.experiment.health"
