"""Bad definitions, layers, holdouts and metrics are refused by the name of the field; lists are bounded, and objects
in use stay."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.admin.experiments import experiments, layers, metrics, wire, wire_previews
from gateway.domain.experiments.definition import MAX_ARMS
from gateway.http.explain import PATTERN_WORDS
from tests.gateway.admin.experiments.conftest import Lab, definition


def arms(**changes: Any) -> list[dict[str, Any]]:
    """Return two arms, the second one changed."""
    first, second = definition()["arms"]
    return [first, second | changes]


DARK: dict[str, Any] = {"name": "dark", "target": {"model": "tiny"}, "share": 500}
GOOD_METRICS = definition()["metrics"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        *(({"name": name}, "name") for name in ("", "Upper", "a b", "x" * 65, "-x", None, 1)),
        *(({"model": name}, "model") for name in ("", "tiny:x", "Upper", "x\0")),
        ({"unit": {"from": "cookie"}}, "unit.from"),
        ({"unit": {"from": "metadata."}}, "unit.from"),
        ({"unit": {"source": "user"}}, "unit.source"),
        ({"unit": {}}, "unit.from"),
        *(({"coverage": value}, "coverage") for value in (0, 10_001, 1.5, "all")),
        ({"layer": "nowhere"}, "layer"),
        ({"holdout": "nowhere"}, "holdout"),
        ({"arms": []}, "arms"),
        ({"arms": arms()[:1]}, "arms"),
        ({"arms": arms() * 5}, "arms"),
        ({"arms": arms(name="control")}, "arms[1].name"),
        ({"arms": arms(name="A")}, "arms[1].name"),
        ({"arms": arms(weight=-1)}, "arms[1].weight"),
        ({"arms": arms(weight=0)}, "arms[1].weight"),
        ({"arms": arms(surprise=1)}, "arms[1].surprise"),
        ({"arms": arms(ended=True, weight=0)}, "arms"),
        ({"arms": arms(target={"model": ""})}, "arms[1].target.model"),
        ({"arms": arms(target={"model": "support-bot"})}, "arms[1].target.model"),
        ({"arms": arms(target={"model": "x", "mode": "merge"})}, "arms[1].target.mode"),
        ({"arms": arms(target={"model": "x", "defaults": {"temperature": 3}})}, "arms[1].target.defaults.temperature"),
        ({"arms": arms(target={"model": "x", "defaults": {"n": 3}})}, "arms[1].target.defaults.n"),
        (
            {"arms": arms(target={"model": "x", "defaults": {"system_prompt": "a\0b"}})},
            "arms[1].target.defaults.system_prompt",
        ),
        ({"shadow": DARK | {"name": "control"}}, "shadow.name"),
        ({"shadow": DARK | {"share": 10_001}}, "shadow.share"),
        ({"shadow": DARK | {"weight": 1}}, "shadow.weight"),
        ({"shadow": {"name": "dark", "share": 1}}, "shadow.target"),
        ({"shadow": DARK | {"target": {"model": "support-bot"}}}, "shadow.target.model"),
        (
            {"shadow": DARK | {"target": {"model": "x", "defaults": {"system_prompt": "a\0b"}}}},
            "shadow.target.defaults.system_prompt",
        ),
        ({"metrics": {"primary": []}}, "metrics.primary"),
        ({"metrics": {"primary": [{"metric": "smiles", "goal": "increase"}]}}, "metrics.primary[0].metric"),
        ({"metrics": {"primary": [{"metric": "cost_nanos", "goal": "up"}]}}, "metrics.primary[0].goal"),
        ({"metrics": GOOD_METRICS | {"guardrails": [{"metric": "smiles"}]}}, "metrics.guardrails[0].metric"),
        (
            {"metrics": GOOD_METRICS | {"guardrails": [{"metric": "error_rate", "margin": -1}]}},
            "metrics.guardrails[0].margin",
        ),
        (
            {"metrics": GOOD_METRICS | {"guardrails": [{"metric": "error_rate", "action": "page"}]}},
            "metrics.guardrails[0].action",
        ),
        ({"metrics": GOOD_METRICS | {"secondary": ["smiles"]}}, "metrics.secondary[0]"),
        ({"metrics": GOOD_METRICS | {"secondary": ["cost_nanos.p95"]}}, "metrics.secondary[0]"),
        *(({"analysis": {"alpha": value}}, "analysis.alpha") for value in (0, 1, "x")),
        ({"analysis": {"tightest_at": 1}}, "analysis.tightest_at"),
        ({"analysis": {"outcome_window_seconds": 9}}, "analysis.outcome_window_seconds"),
        ({"analysis": {"min_days": -1}}, "analysis.min_days"),
        ({"analysis": {"mode": "fixed"}}, "analysis.mode"),
        ({"surprise": 1}, "surprise"),
    ],
    ids=str,
)
async def test_a_wrong_definition_is_refused_by_its_field(lab: Lab, change: dict[str, Any], param: str) -> None:
    assert await lab.refusal(lab.path, definition(**change)) == (400, param)
    assert (await lab.client.get(lab.path)).json()["data"] == []
    assert await lab.events() == []


NAME = "expected 1 to 64 lower-case letters, digits, '.', '_' and '-', the first a letter or a digit."
OWN = {"name": "stars", "type": "number", "goal": "increase"}
MESSAGES: list[tuple[str, dict[str, Any], str]] = [
    ("experiments", definition(model="bad:name"), f"Invalid value for 'model': {NAME}"),
    ("experiments", definition(name="a" * 65), "Invalid value for 'name': expected a string of length <= 64."),
    ("experiments", definition(arms=arms(name="a" * 65)), "'arms[1].name': expected a string of length <= 64."),
    ("experiments", definition(coverage=1234.5), "'coverage': expected an integer, but got a number instead."),
    ("holdouts", {"name": "few", "size": 12.5}, "'size': expected an integer, but got a number instead."),
    ("feedback_metrics", OWN | {"least": 1e-7}, "'least': it is kept with 6 decimals: give no more."),
    ("experiments", definition(name="Upper"), f"Invalid value for 'name': {NAME}"),
    ("experiments", definition(layer="a b"), f"Invalid value for 'layer': {NAME}"),
    ("experiments", definition(holdout="-"), f"Invalid value for 'holdout': {NAME}"),
    ("experiments", definition(arms=arms(name="A")), f"Invalid value for 'arms[1].name': {NAME}"),
    (
        "experiments",
        definition(arms=arms(target={"model": "a b"})),
        "Invalid value for 'arms[1].target.model': expected a model string without spaces and control characters.",
    ),
    (
        "experiments",
        definition(unit={"from": "a\n"}),
        "Invalid value for 'unit.from': expected a string without control characters.",
    ),
    (
        "experiments",
        definition(unit={"from": "cookie"}),
        "The unit comes from safety_identifier, user, prompt_cache_key, x-lorikeet-unit, api_key or metadata.<key>.",
    ),
    (
        "experiments",
        definition(metrics={"primary": [{"metric": "cost_nanos.p95", "goal": "decrease"}]}),
        "There is no metric `cost_nanos.p95`. There are cost_nanos, prompt_tokens, completion_tokens, ttft_ms, "
        "time_per_token_ms, queue_ms, engine_ms, error_rate, refusal_rate, length_rate, answer_rate, those of times "
        "also with .p50, .p90, .p95, .p99, and the project's feedback metrics.",
    ),
    ("experiments/preview", {"experiment_id": "a b", "unit": "ann"}, "expected an id: letters, digits, '_' and '-'."),
    ("experiments/preview", {"experiment_id": "exp", "unit": "\0"}, "expected a string without a NUL character."),
    ("feedback_metrics", OWN | {"name": "Stars"}, f"Invalid value for 'name': {NAME}"),
    ("experiment_layers", {"name": "Layer"}, f"Invalid value for 'name': {NAME}"),
    ("holdouts", {"name": "a/b", "size": 5}, f"Invalid value for 'name': {NAME}"),
    ("experiment_units/forget", {"unit": "a\0"}, "expected a string without a NUL character."),
]


@pytest.mark.parametrize(("path", "body", "message"), MESSAGES, ids=str)
async def test_a_refusal_says_in_words_what_is_allowed(lab: Lab, path: str, body: dict[str, Any], message: str) -> None:
    reply = await lab.client.post(f"{lab.project}/{path}", json=body)
    assert reply.status_code == 400 and reply.json()["error"]["message"].endswith(message), reply.text


def test_every_pattern_of_a_body_about_experiments_is_explained_in_words() -> None:
    """No refusal shows a regular expression, whichever field is wrong."""
    bodies = [wire.CreateExperiment, wire.ModifyExperiment, wire.DecideExperiment, wire.CreateFeedbackMetric]
    more = [wire.CreateLayer, wire.CreateHoldout, wire.ForgetUnit, wire_previews.PreviewExperiment]
    listed: list[Any] = [
        msgspec.inspect.type_info(each) for each in (*bodies, *more, wire_previews.CalibrateExperiment)
    ]
    num = 0
    while listed:
        each = listed.pop()
        if isinstance(each, msgspec.inspect.Metadata):
            if getattr(each.type, "pattern", None) is not None:
                num += 1
                assert (each.extra or {}).get(PATTERN_WORDS), each
            elif not isinstance(each.type, msgspec.inspect.StrType):
                listed.append(each.type)
            continue
        assert getattr(each, "pattern", None) is None, f"{each} has a pattern and no words"
        listed += [one.type for one in getattr(each, "fields", ())]
        listed += getattr(each, "types", ())
        listed += [getattr(each, name) for name in ("item_type", "key_type", "value_type") if hasattr(each, name)]
    assert num > 10


async def test_a_draft_is_refused_what_a_new_one_is(lab: Lab) -> None:
    made = await lab.make()
    path = f"{lab.path}/{made['id']}"
    assert await lab.refusal(path, {"layer": "nowhere"}) == (400, "layer")
    assert await lab.refusal(path, {"metrics": {"primary": [{"metric": "x", "goal": "increase"}]}}) == (
        400,
        "metrics.primary[0].metric",
    )
    ended = arms()
    ended.append({"name": "third", "weight": 0, "ended": True, "target": {"model": "tiny"}})
    assert await lab.refusal(path, {"arms": ended}) == (400, "arms[2].ended")
    assert len(ended) < MAX_ARMS
    await lab.make(name="other", model="other-bot")
    assert await lab.refusal(path, {"name": "other"}) == (409, "name")
    assert await lab.refusal(lab.path, definition()) == (409, "name")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"name": "cost_nanos"}, "name"),
        ({"name": "a.p95"}, "name"),
        ({"type": "stars"}, "type"),
        ({"goal": "up"}, "goal"),
        ({"kind": "sum"}, "kind"),
        ({"type": "boolean", "least": 0, "most": None}, "least"),
        ({"least": 5, "most": 5}, "most"),
        ({"least": 0.1234567}, "least"),
        ({"most": 4.00000001}, "most"),
        ({"type": "label", "least": None, "most": None, "labels": {"good": 1, "so-so": 1 / 3}}, "labels"),
        ({"labels": {"good": 1}}, "labels"),
        ({"type": "label", "least": None, "most": None}, "labels"),
        ({"type": "label", "least": None, "most": None, "labels": {}}, "labels"),
        ({"description": "\0"}, "description"),
        ({"description": "x" * 501}, "description"),
    ],
    ids=str,
)
async def test_a_wrong_metric_is_refused_by_its_field(lab: Lab, change: dict[str, Any], param: str) -> None:
    good = {"name": "stars", "type": "number", "goal": "increase", "least": 1, "most": 5}
    assert await lab.refusal(f"{lab.project}/feedback_metrics", good | change) == (400, param)


async def test_a_metric_is_made_used_and_then_stays(lab: Lab) -> None:
    path = f"{lab.project}/feedback_metrics"
    label = {
        "name": "tone",
        "type": "label",
        "goal": "increase",
        "labels": {"warm": 1, "cold": -0.5},
        "description": "How it sounds",
    }
    made = (await lab.client.post(path, json=label)).json()
    assert (made["labels"], made["id"], made["kind"]) == ({"warm": 1.0, "cold": -0.5}, "tone", "mean")
    assert (await lab.client.get(path)).json()["data"] == [made]
    assert await lab.refusal(path, label) == (409, "name")
    experiment = await lab.make(
        metrics={
            "primary": [{"metric": "cost_nanos", "goal": "decrease"}],
            "guardrails": [{"metric": "tone", "goal": "increase"}],
        }
    )
    reply = await lab.client.delete(f"{path}/tone")
    assert (reply.status_code, "'support-tone'" in reply.json()["error"]["message"]) == (409, True)
    for listed in ("secondary", "primary"):
        value: Any = ["tone"] if listed == "secondary" else [{"metric": "tone", "goal": "increase"}]
        await lab.do(experiment, "", metrics=definition()["metrics"] | {"guardrails": [], listed: value})
        assert (await lab.client.delete(f"{path}/tone")).status_code == 409, listed
    await lab.client.delete(f"{lab.path}/{experiment['id']}")
    assert (await lab.client.delete(f"{path}/tone")).json()["deleted"] is True
    assert (await lab.client.delete(f"{path}/tone")).status_code == 404
    assert await lab.events("metric.") == ["metric.created", "metric.deleted"]


async def test_a_metric_with_votes_stays(lab: Lab) -> None:
    path = f"{lab.project}/feedback_metrics"
    await lab.client.post(path, json={"name": "thumbs", "type": "boolean", "goal": "increase"})
    async with lab.database.acquire() as conn:
        await conn.execute(
            "INSERT INTO feedback (id, project_id, request_id, metric, source, value, fingerprint, occurred_at) "
            "VALUES ('fb_1', $1, 'req_1', 'thumbs', 'user', 1, '', now())",
            lab.project_id,
        )
    assert await lab.refusal(f"{path}/thumbs", method="DELETE") == (409, "name")


@pytest.mark.parametrize(
    ("path", "body", "user"),
    [("experiment_layers", {}, {"layer": "mine"}), ("holdouts", {"size": 500}, {"holdout": "mine"})],
)
async def test_layers_and_holdouts_are_made_used_and_removed(
    lab: Lab, path: str, body: dict[str, Any], user: dict[str, Any]
) -> None:
    whole = f"{lab.project}/{path}"
    made = (await lab.client.post(whole, json={"name": "mine"} | body)).json()
    assert made["id"] == made["name"] == "mine"
    assert (await lab.client.get(whole)).json()["data"] == [made]
    assert await lab.refusal(whole, {"name": "mine"} | body) == (409, "name")
    assert await lab.refusal(whole, {"name": "Mine"} | body) == (400, "name")
    experiment = await lab.make(**user)
    assert await lab.refusal(f"{whole}/mine", method="DELETE") == (409, "name")
    await lab.client.delete(f"{lab.path}/{experiment['id']}")
    assert (await lab.client.delete(f"{whole}/mine")).json()["deleted"] is True
    assert await lab.refusal(f"{whole}/mine", method="DELETE") == (404, "name")


async def test_the_objects_of_experiments_are_bounded_in_number(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, path, body in (
        (experiments, "MAX_EXPERIMENTS", lab.path, definition(name="second")),
        (experiments, "MAX_EXPERIMENTS_EVER", lab.path, definition(name="second")),
        (layers, "MAX_LAYERS", f"{lab.project}/experiment_layers", {"name": "second"}),
        (layers, "MAX_HOLDOUTS", f"{lab.project}/holdouts", {"name": "second", "size": 1}),
        (
            metrics,
            "MAX_METRICS",
            f"{lab.project}/feedback_metrics",
            {"name": "second", "type": "boolean", "goal": "increase"},
        ),
    ):
        if name != "MAX_EXPERIMENTS_EVER":
            assert (await lab.client.post(path, json=body | {"name": "first"})).status_code == 200
        monkeypatch.setattr(module, name, 1)
        assert await lab.refusal(path, body) == (400, None), name
        monkeypatch.undo()


async def test_experiments_come_in_pages_and_by_state(lab: Lab) -> None:
    made = [await lab.make(name=f"e-{number}", model=f"bot-{number}", coverage=1000) for number in range(5)]
    await lab.do(made[3], "start")
    names, after = [], {}
    for _ in range(3):
        page = (await lab.client.get(lab.path, params={"limit": 2} | after)).json()
        names += [each["name"] for each in page["data"]]
        after = {"after": page["last_id"]}
    assert (names, page["has_more"]) == ([f"e-{number}" for number in range(5)], False)
    running = (await lab.client.get(lab.path, params={"state": "running"})).json()["data"]
    assert [each["name"] for each in running] == ["e-3"]
    assert running[0]["arms"][0]["serves"]["version"] == 1
    reply = await lab.client.get(lab.path, params={"state": "odd"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "state")


async def test_the_audit_log_has_no_system_prompt(lab: Lab) -> None:
    secret = "You are a very particular parrot."
    await lab.make(arms=arms(target={"model": "tiny", "defaults": {"system_prompt": secret}}))
    logs = await lab.client.get("/audit_logs")
    assert secret not in logs.text
    assert "sha256:" in logs.text
