"""A wrong definition is refused by its field, and after the start a change that would move an exposed unit is
refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.domain.errors import Conflict, InvalidRequest
from gateway.domain.experiments.definition import (
    Analysis,
    Arm,
    Experiment,
    Guardrail,
    Metrics,
    Primary,
    Shadow,
    Target,
    UnitSource,
    check_change,
    check_definition,
)
from gateway.domain.experiments.metrics import read_metric
from gateway.domain.experiments.states import NEXT, has_started, owns_slots, state_after

OWN = ("thumbs_up",)
ARMS = (Arm("control", 5_000, Target("base:support@2")), Arm("warm", 5_000, Target("base:support@3")))
METRICS = Metrics(
    (Primary("thumbs_up", "increase"),),
    (Guardrail("error_rate", "pause"), Guardrail("ttft_ms.p95", margin=0.1)),
    ("cost_nanos",),
)
GOOD = Experiment("support-tone", "support-bot", UnitSource("safety_identifier"), ARMS, METRICS, coverage=2_000)


def experiment_with(**fields: Any) -> Experiment:
    return msgspec.structs.replace(GOOD, **fields)


def with_arm(**fields: Any) -> Experiment:
    return experiment_with(arms=(ARMS[0], msgspec.structs.replace(ARMS[1], **fields)))


def test_a_definition_travels_as_json() -> None:
    check_definition(GOOD, OWN)
    encoded = msgspec.json.encode(GOOD)
    assert b'"unit":{"from":"safety_identifier"}' in encoded
    assert msgspec.json.decode(encoded, type=Experiment) == GOOD
    with pytest.raises(msgspec.ValidationError, match="unknown field `wieght`"):
        msgspec.json.decode(encoded.replace(b'"weight"', b'"wieght"'), type=Experiment)


@pytest.mark.parametrize(
    ("param", "bad"),
    [
        ("name", experiment_with(name="Support tone")),
        ("name", experiment_with(name="")),
        ("model", experiment_with(model="base:support")),
        ("layer", experiment_with(layer="a" * 65)),
        ("holdout", experiment_with(holdout="")),
        ("unit.from", experiment_with(unit=UnitSource("ip"))),
        ("unit.from", experiment_with(unit=UnitSource("metadata."))),
        ("unit.from", experiment_with(unit=UnitSource("metadata." + "k" * 65))),
        ("coverage", experiment_with(coverage=0)),
        ("coverage", experiment_with(coverage=10_001)),
        ("arms", experiment_with(arms=ARMS[:1])),
        ("arms", experiment_with(arms=ARMS * 5)),
        ("arms[1].weight", with_arm(weight=0)),
        ("arms[0].weight", experiment_with(arms=(Arm("control", 0, Target("base")), ARMS[1]))),
        (
            "arms[2].weight",
            experiment_with(arms=(ARMS[0], Arm("over", 0, ARMS[0].target, True), Arm("c", 0, Target("base")))),
        ),
        ("arms", experiment_with(arms=(ARMS[0], Arm("over", 0, ARMS[0].target, True)))),
        ("arms[1].name", with_arm(name="control")),
        ("arms[1].name", with_arm(name="é")),
        ("arms[1].weight", with_arm(weight=-1)),
        (
            "arms[0].weight",
            experiment_with(arms=(Arm("control", 1, Target("base")), Arm("warm", 100_000, Target("base")))),
        ),
        ("arms[1].weight", with_arm(ended=True)),
        ("arms[1].target.model", with_arm(target=Target(""))),
        ("arms[1].target.model", with_arm(target=Target("support-bot"))),
        ("shadow.name", experiment_with(shadow=Shadow("warm", Target("base"), 1))),
        ("shadow.name", experiment_with(shadow=Shadow("Dark", Target("base"), 1))),
        ("shadow.share", experiment_with(shadow=Shadow("dark", Target("base"), 10_001))),
        ("shadow.share", experiment_with(shadow=Shadow("dark", Target("base"), -1))),
        ("shadow.target.model", experiment_with(shadow=Shadow("dark", Target("support-bot"), 1))),
        ("shadow.target.model", experiment_with(shadow=Shadow("dark", Target(""), 1))),
        ("arms[0].ended", experiment_with(arms=(Arm("control", 0, Target("base"), ended=True), *ARMS[1:]))),
        ("metrics.primary", experiment_with(metrics=Metrics(()))),
        ("metrics.primary[0].metric", experiment_with(metrics=Metrics((Primary("smiles", "increase"),)))),
        ("metrics.primary[1].metric", experiment_with(metrics=Metrics(METRICS.primary * 2))),
        ("metrics.secondary[0]", experiment_with(metrics=Metrics(METRICS.primary, (), ("cost_nanos.p95",)))),
        ("metrics.secondary", experiment_with(metrics=Metrics(METRICS.primary, (), ("cost_nanos",) * 51))),
        ("metrics.guardrails[0].goal", experiment_with(metrics=Metrics(METRICS.primary, (Guardrail("thumbs_up"),)))),
        (
            "metrics.guardrails[0].margin",
            experiment_with(metrics=Metrics(METRICS.primary, (Guardrail("error_rate", margin=float("nan")),))),
        ),
        ("analysis.alpha", experiment_with(analysis=Analysis(alpha=0.5))),
        ("analysis.alpha", experiment_with(analysis=Analysis(alpha=float("nan")))),
        ("analysis.tightest_at", experiment_with(analysis=Analysis(tightest_at=1))),
        ("analysis.outcome_window_seconds", experiment_with(analysis=Analysis(outcome_window_seconds=90 * 86_400 + 1))),
        ("analysis.min_days", experiment_with(analysis=Analysis(min_days=-1))),
    ],
)
def test_bad_fields_are_refused_by_name(param: str, bad: Experiment) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_definition(bad, OWN)
    assert refused.value.param == param


def test_metadata_may_name_the_unit() -> None:
    check_definition(experiment_with(unit=UnitSource("metadata.customer")), OWN)


def test_changes_that_move_no_exposed_unit_are_allowed_after_the_start() -> None:
    more = msgspec.structs.replace(METRICS, guardrails=(*METRICS.guardrails, Guardrail("refusal_rate")))
    for allowed in (
        experiment_with(coverage=10_000),
        with_arm(weight=1),
        with_arm(weight=0, ended=True),
        experiment_with(metrics=more),
    ):
        check_change(GOOD, allowed)


@pytest.mark.parametrize(
    ("param", "bad"),
    [
        ("name", experiment_with(name="other")),
        ("model", experiment_with(model="other")),
        ("unit", experiment_with(unit=UnitSource("user"))),
        ("layer", experiment_with(layer="other")),
        ("holdout", experiment_with(holdout="some")),
        ("analysis", experiment_with(analysis=Analysis(alpha=0.1))),
        ("coverage", experiment_with(coverage=1_999)),
        ("arms", experiment_with(arms=(*ARMS, Arm("third", 1, Target("base"))))),
        ("arms[1].name", with_arm(name="hot")),
        ("arms[1].target", with_arm(target=Target("base:support@4"))),
        ("metrics.primary", experiment_with(metrics=Metrics((Primary("thumbs_up", "decrease"),)))),
        ("metrics.secondary", experiment_with(metrics=msgspec.structs.replace(METRICS, secondary=()))),
        ("metrics.guardrails", experiment_with(metrics=msgspec.structs.replace(METRICS, guardrails=()))),
    ],
)
def test_every_other_change_after_the_start_is_refused_by_its_field(param: str, bad: Experiment) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_change(GOOD, bad)
    assert refused.value.param == param


def test_an_ended_arm_does_not_come_back() -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_change(with_arm(weight=0, ended=True), GOOD)
    assert refused.value.param == "arms[1].ended"


def test_an_experiment_goes_from_draft_to_archive_and_never_back() -> None:
    state: Any = "draft"
    for verb, expected in (
        ("start", "running"),
        ("pause", "paused"),
        ("start", "running"),
        ("stop", "stopped"),
        ("decide", "decided"),
        ("archive", "archived"),
    ):
        state = state_after(state, verb)  # type: ignore[arg-type]
        assert state == expected
    states: tuple[Any, ...] = ("draft", "running", "paused", "stopped", "decided", "archived")
    verbs: tuple[Any, ...] = ("start", "pause", "stop", "decide", "archive", "change", "delete")
    allowed = {(s, v) for s in states for v in verbs if _is_allowed(s, v)}
    assert allowed == {*NEXT, ("draft", "change"), ("running", "change"), ("paused", "change"), ("draft", "delete")}
    assert [owns_slots(each) for each in states] == [False, True, True, True, False, False]
    assert [has_started(each) for each in states] == [False, True, True, True, True, True]


def _is_allowed(state: Any, verb: Any) -> bool:
    try:
        state_after(state, verb)
    except Conflict as error:
        assert state in error.message
        return False
    return True


def test_names_of_metrics_are_checked() -> None:
    found = read_metric("ttft_ms.p95")
    assert found is not None and (found.name, found.quantile) == ("ttft_ms", 0.95)
    assert read_metric("thumbs_up", OWN) is not None
    assert read_metric("thumbs_up") is read_metric("ttft_ms.p33") is read_metric("error_rate.p95") is None


DARK = Shadow("dark", Target("base"), 500)


@pytest.mark.parametrize(
    ("param", "before", "wanted"),
    [
        ("shadow", None, DARK),
        ("shadow", DARK, None),
        ("shadow.name", DARK, msgspec.structs.replace(DARK, name="darker")),
        ("shadow.target", DARK, msgspec.structs.replace(DARK, target=Target("other"))),
    ],
)
def test_a_shadow_arm_changes_nothing_but_its_share_after_the_start(
    param: str, before: Shadow | None, wanted: Shadow | None
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_change(experiment_with(shadow=before), experiment_with(shadow=wanted))
    assert caught.value.param == param
    for share in (0, 10_000):
        check_change(experiment_with(shadow=DARK), experiment_with(shadow=msgspec.structs.replace(DARK, share=share)))
