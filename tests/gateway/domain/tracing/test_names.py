"""Our names of OpenTelemetry's conventions are those of OpenTelemetry's own package, of the version that we state."""

from __future__ import annotations

from opentelemetry.semconv import schemas
from opentelemetry.semconv._incubating.attributes import feature_flag_attributes, gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, http_attributes, service_attributes, url_attributes

from gateway.domain.experiments.exposure import Exposure
from gateway.domain.tracing import names
from gateway.evaluation.handler import log_fields
from gateway.evaluation.wire import Vote

MODULES = (
    error_attributes,
    feature_flag_attributes,
    gen_ai_attributes,
    http_attributes,
    service_attributes,
    url_attributes,
)
OFFICIAL = {value for module in MODULES for value in vars(module).values() if isinstance(value, str)}
OUR_VALUES = {
    "SCHEMA_URL",
    "SCOPE",
    "GATEWAY",
    "ENGINE",
    "CHAT",
    "TEXT_COMPLETION",
    "EMBEDDINGS",
    "RERANK",
    "SHADOW",
    "BACKGROUND_RESPONSE",
    "BATCH_LINE",
}
EVENTS = {"FLAG_EVENT", "EVALUATION_EVENT", "PREFILL_EVENT", "FIRST_TOKEN_EVENT"}


def test_every_attribute_is_official_or_has_our_prefix() -> None:
    ours = {name: value for name, value in vars(names).items() if name.isupper() and not name.endswith("_PREFIX")}
    assert names.SERVICE_INSTANCE_ID == "service.instance.id"  # stable by now, and not in the package's own list
    checked = ours.keys() - OUR_VALUES - EVENTS - {"SERVICE_INSTANCE_ID"}
    assert len(checked) > 30
    for name in checked:
        assert ours[name] in OFFICIAL or ours[name].startswith("lorikeet."), name


def test_the_version_is_one_that_the_package_knows() -> None:
    assert schemas.Schemas.V1_44_0.value == names.SCHEMA_URL


def test_operations_have_their_well_known_names() -> None:
    known = {each.value for each in gen_ai_attributes.GenAiOperationNameValues}
    assert {names.CHAT, names.TEXT_COMPLETION, names.EMBEDDINGS} <= known


def test_arms_and_votes_have_official_names() -> None:
    arm = Exposure("exp_1", "a", 1, 0, "control", 1, "split", b"\1" * 32).log_fields("proj_1")
    vote = log_fields(Vote(metric="stars", value=4, completion_id="chatcmpl-1"))
    assert arm.keys() | vote.keys() <= OFFICIAL
    assert all(each.startswith(names.FLAG_PREFIX) for each in arm)
    assert all(each.startswith(names.EVALUATION_PREFIX) for each in vote)
