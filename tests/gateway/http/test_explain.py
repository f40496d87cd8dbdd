"""A refusal says what is allowed, and repeats little of what was sent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.domain.errors import InvalidRequest
from gateway.http.explain import _inspected, explain
from gateway.http.fields import decode
from gateway.messages.wire import CreateMessage
from gateway.openai.chat.wire import ChatCompletionRequest

DECODER = msgspec.json.Decoder(ChatCompletionRequest)
GOOD: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}


def refusal(body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        decode(DECODER, body)
    return refused.value


def refusal_with(**fields: Any) -> InvalidRequest:
    return refusal(msgspec.json.encode(GOOD | fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n": "1"}, "Invalid type for 'n': expected an integer, but got a string instead."),
        ({"temperature": []}, "Invalid type for 'temperature': expected a number, but got an array instead."),
        ({"stop": 1}, "Invalid type for 'stop': expected a string or an array, but got an integer instead."),
        ({"n": 0}, "Invalid value for 'n': expected an integer >= 1."),
        ({"stop": ["a"] * 5}, "Invalid value for 'stop': expected an array of length <= 4."),
        (
            {"metadata": {"k" * 65: ""}},
            "Invalid value for 'metadata': each key must be a string of length <= 64 (the wrong entry is "
            f"'{'k' * 65}').",
        ),
        ({"verbosity": "x"}, "Invalid value for 'verbosity': 'x'. Supported values are: 'high', 'low' or 'medium'."),
        (
            {"response_format": {"type": "xml"}},
            "Invalid value for 'response_format.type': 'xml'. Supported values are: 'json_object', 'json_schema' or "
            "'text'.",
        ),
        ({"model": None}, "Invalid type for 'model': expected a string, but got null instead."),
        ({"nonsense": 1}, "Unrecognized request argument supplied: nonsense"),
    ],
    ids=str,
)
def test_a_refusal_explains_the_wrong_value_in_words(fields: dict[str, Any], message: str) -> None:
    assert refusal_with(**fields).message == message


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"five": 1}, "'five'"),
        ({"-1": 1}, "'-1'"),
        ({"7": 101}, "'7'"),
        ({"7": "x"}, "'7'"),
        ({"1.5": 1}, "'1.5'"),
        ({"7": [1]}, "'7'"),
        ({"": 1}, "''"),
        ({"x" * 5000: 1}, f"'{'x' * 100}...'"),
    ],
    ids=range(8),
)
def test_a_wrong_entry_of_logit_bias_is_named(wrong: dict[str, Any], named: str) -> None:
    for bias in (wrong, {"5": 1, "6": -2} | wrong, wrong | {"8": 1}):
        error = refusal_with(logit_bias=bias)
        assert (error.param, named in error.message) == ("logit_bias", True), error.message
        assert "'5'" not in error.message and "'8'" not in error.message


def test_an_entry_of_a_body_that_is_no_json_is_refused_without_its_name() -> None:
    """The decoder stops at the first wrong field, so its message stands without the name."""
    error = refusal(b'{"logit_bias":{"five":1},"messages":[')
    assert (error.param, "five" in error.message) == ("logit_bias", False)


def test_a_key_that_a_mapping_does_not_have_is_an_unknown_argument() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":1,"metadata":{"user":"y"}}'
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.json.decode(body, type=CreateMessage)
    error = explain(str(raised.value), CreateMessage, body)
    assert (error.param, error.code) == ("metadata.user", "unknown_parameter")
    assert error.message == "Unrecognized request argument supplied: metadata.user"


def test_the_values_of_a_role_are_listed() -> None:
    error = refusal_with(messages=[{"role": "robot", "content": "x"}])
    assert error.param == "messages[0].role"
    assert "'robot'" in error.message and "'assistant'" in error.message and "'user'" in error.message


@pytest.mark.parametrize(
    "fields",
    [{"x" * 100_000: 1}, {"verbosity": "x" * 100_000}, {"response_format": {"type": "y" * 100_000}}],
    ids=range(3),
)
def test_long_values_are_cut_in_refusals(fields: dict[str, Any]) -> None:
    error = refusal_with(**fields)
    assert len(error.message) < 400
    assert len(error.param or "") < 200


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "empty"),
        (b'{"moderation":' + b"[" * 100_000, "nested too deeply"),
        (b'{"moderation":' + b'{"x":' * 5_000, "nested too deeply"),
        (b'{"model":NaN}', "not valid JSON"),
        (b'{"model":Infinity}', "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"model=tiny&messages=x", "not valid JSON"),
    ],
    ids=range(7),
)
def test_a_body_that_is_no_json_is_refused_with_the_reason(body: bytes, word: str) -> None:
    error = refusal(body)
    assert word in error.message
    assert (error.param, error.code) == (None, "invalid_json")


@pytest.mark.parametrize("field", ["n", "seed", "temperature", "max_tokens", "priority"])
def test_a_number_of_any_length_is_refused_by_name(field: str) -> None:
    assert refusal(b'{"%b":1%b}' % (field.encode(), b"0" * 5000)).param == field


def test_the_last_of_two_equal_names_counts() -> None:
    """RFC 8259, section 4, describes this as JSON's usual practice."""
    assert decode(DECODER, msgspec.json.encode(GOOD)[:-1] + b',"n":2,"n":3}').n == 3


def test_a_type_is_taken_apart_once_however_many_bodies_are_refused() -> None:
    refusal_with(verbosity="x")
    num_taken = _inspected.cache_info().misses
    refusal_with(service_tier="x")
    assert _inspected.cache_info().misses == num_taken
