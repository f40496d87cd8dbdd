"""Tests with OpenFeature's SDK and its stock provider for remote evaluation: it gets the arms that the gateway
serves."""

from __future__ import annotations

import datetime
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from openfeature import api
from openfeature.client import OpenFeatureClient
from openfeature.contrib.provider.ofrep import OFREPProvider
from openfeature.evaluation_context import EvaluationContext
from openfeature.exception import ErrorCode
from openfeature.flag_evaluation import FlagEvaluationDetails, Reason

EXPERIMENT = os.environ["CONFORMANCE_EXPERIMENT"]
NUM_UNITS = int(os.environ["CONFORMANCE_UNITS"])
NOBODY = "no arm"
AT_ONCE = 16


@pytest.fixture(scope="module")
def provider(place) -> OFREPProvider:
    base_url = place.url.removesuffix("/v1")
    return OFREPProvider(base_url, headers_factory=lambda: {"authorization": f"Bearer {place.key}"}, timeout=60.0)


@pytest.fixture(scope="module")
def flags(provider) -> OpenFeatureClient:
    api.set_provider(provider)
    return api.get_client()


def arm_of(flags: OpenFeatureClient, provider: OFREPProvider, unit: str) -> FlagEvaluationDetails[str]:
    """Return the evaluation of a unit's flag; ask again if the gateway asks the client to wait."""
    while True:
        found = flags.get_string_details(EXPERIMENT, NOBODY, EvaluationContext(targeting_key=unit))
        if found.error_code is not ErrorCode.GENERAL or provider.retry_after is None:
            return found
        wait = provider.retry_after - datetime.datetime.now(datetime.UTC)
        time.sleep(max(0.01, wait.total_seconds()))


def served_arm(place, session: requests.Session, unit: str) -> str:
    """Send a request for a unit, and return the arm that its reply names."""
    body = {"model": EXPERIMENT, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    headers = {"authorization": f"Bearer {place.key}"}
    reply = session.post(
        f"{place.url}/chat/completions", json=body | {"safety_identifier": unit}, headers=headers, timeout=300
    )
    assert reply.status_code == 200, reply.text
    return reply.headers["x-lorikeet-experiment"].split('arm="')[1].split('"')[0]


def test_the_sdk_gets_the_arms_that_the_gateway_serves(place, flags, provider, record_property):
    units = [f"user-{number}" for number in range(NUM_UNITS)]
    told = {unit: arm_of(flags, provider, unit).value for unit in units}
    with ThreadPoolExecutor(AT_ONCE) as pool, requests.Session() as session:
        served = dict(zip(units, pool.map(lambda unit: served_arm(place, session, unit), units), strict=True))
    after = {unit: arm_of(flags, provider, unit).value for unit in units}
    differ = [unit for unit in units if not told[unit] == served[unit] == after[unit]]
    record_property("figure", f"{len(differ)} of {NUM_UNITS} units differ")
    assert differ == []
    assert len(set(served.values())) == 2 and NOBODY not in served.values()


def test_an_arm_comes_with_its_reason_and_what_it_is_of(flags):
    found = flags.get_string_details(EXPERIMENT, NOBODY, EvaluationContext(targeting_key="ann"))
    assert (found.reason, found.variant, found.error_code) == (Reason.SPLIT, found.value, None)
    assert found.flag_metadata["model"] == EXPERIMENT and found.flag_metadata["version"] == 1


@pytest.mark.parametrize(
    ("flag", "context", "code"),
    [
        (EXPERIMENT, EvaluationContext(), ErrorCode.TARGETING_KEY_MISSING),
        (EXPERIMENT, EvaluationContext(targeting_key="x" * 600), ErrorCode.INVALID_CONTEXT),
        ("no-such-experiment", EvaluationContext(targeting_key="ann"), ErrorCode.FLAG_NOT_FOUND),
    ],
    ids=["no-key", "too-long", "unknown"],
)
def test_without_an_arm_the_sdk_has_its_default_and_why(flags, flag, context, code):
    found = flags.get_string_details(flag, NOBODY, context)
    assert (found.value, found.error_code, found.reason) == (NOBODY, code, Reason.ERROR)


def test_an_arm_is_a_text_and_no_boolean(flags):
    found = flags.get_boolean_details(EXPERIMENT, default_value=False, evaluation_context=EvaluationContext("ann"))
    assert (found.value, found.error_code) == (False, ErrorCode.TYPE_MISMATCH)
