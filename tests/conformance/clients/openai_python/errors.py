"""Tests of errors with OpenAI's client: the classes that it raises, its retries, and headers."""

from __future__ import annotations

import openai as package
import pytest
from openai import DefaultHttpxClient, OpenAI


class CountingClient:
    """A client with strict validation that counts its requests."""

    def __init__(self, key: str, max_retries: int) -> None:
        self.num_sent = 0
        http = DefaultHttpxClient(event_hooks={"request": [self._count]})
        self.client = OpenAI(api_key=key, max_retries=max_retries, http_client=http, _strict_response_validation=True)

    def _count(self, request: object) -> None:
        self.num_sent += 1


@pytest.mark.parametrize("key", ["nonsense", "sk-lk-" + "a" * 58])
def test_a_wrong_key_is_an_authentication_error(place, key):
    with OpenAI(api_key=key, max_retries=0) as client, pytest.raises(package.AuthenticationError) as refused:
        client.models.list()
    assert refused.value.code == "invalid_api_key" and refused.value.type == "invalid_request_error"


def test_an_unknown_model_is_not_found_with_its_field(openai, ask):
    with pytest.raises(package.NotFoundError) as missing:
        openai.chat.completions.create(**ask | {"model": "nobody"})
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"n": 0}, "n"),
        ({"messages": []}, "messages"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"extra_body": {"no_such_field": 1}}, "no_such_field"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_request_names(openai, ask, wrong, param):
    with pytest.raises(package.BadRequestError) as refused:
        openai.chat.completions.create(**ask | wrong)
    assert (refused.value.param or "").split(".")[0].split("[")[0] == param
    assert refused.value.type == "invalid_request_error"


def test_an_unknown_address_is_not_found(openai):
    with pytest.raises(package.NotFoundError) as missing:
        openai.post("/nowhere", cast_to=object)
    assert missing.value.code == "unknown_url"


def test_a_used_up_budget_is_a_rate_limit_error_that_is_not_retried(place, ask):
    counted = CountingClient(place.broke_key, max_retries=3)
    with counted.client as client, pytest.raises(package.RateLimitError) as refused:
        client.chat.completions.create(**ask)
    assert refused.value.code == "insufficient_quota" and counted.num_sent == 1
    assert refused.value.response.headers["x-should-retry"] == "false"


def test_a_limit_that_frees_up_is_retried_until_it_does(place, ask):
    counted = CountingClient(place.narrow_key, max_retries=5)
    with counted.client as client:
        long = {"max_tokens": 200, "extra_body": {"ignore_eos": True}}
        with client.chat.completions.create(**ask | long, stream=True) as running:
            next(iter(running))
            with pytest.raises(package.RateLimitError) as refused:
                client.with_options(max_retries=0).chat.completions.create(**ask)
        before = counted.num_sent
        assert client.chat.completions.create(**ask).choices
    assert refused.value.code == "rate_limit_exceeded" and counted.num_sent > before
    assert float(refused.value.response.headers["retry-after-ms"]) > 0


def test_raw_responses_have_the_documented_headers(openai, ask):
    raw = openai.chat.completions.with_raw_response.create(**ask)
    assert raw.headers["x-request-id"].startswith("req_") and raw.headers["openai-version"] == "2020-10-01"
    assert float(raw.headers["openai-processing-ms"]) >= 0 and raw.headers["openai-organization"]
    assert raw.parse().choices


def test_errors_have_a_request_id(openai, ask):
    with pytest.raises(package.BadRequestError) as refused:
        openai.chat.completions.create(**ask | {"temperature": 3})
    assert refused.value.request_id.startswith("req_")


def test_a_response_can_be_read_as_lines(openai, ask):
    with openai.chat.completions.with_streaming_response.create(**ask, stream=True) as response:
        lines = [line for line in response.iter_lines() if line]
    assert response.headers["content-type"].startswith("text/event-stream")
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
