"""Every wrong request gets its status and OpenAI's error shape, with the field at fault in `param`."""

# ruff: noqa: E501 - one wrong request, one line

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.gateway.conftest import House
from tests.patience import PATIENCE_S

CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
USER = {"role": "user", "content": "hi"}


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [USER], "max_tokens": 2, **fields}


def text(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "hi", "max_tokens": 2, **fields}


def message(**fields: Any) -> dict[str, Any]:
    return chat(messages=[{**USER, **fields}])


def schema(json_schema: dict[str, Any]) -> dict[str, Any]:
    return chat(response_format={"type": "json_schema", "json_schema": json_schema})


def embeddings_body(given: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": given, **fields}


def body_without(body: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != field}


WRONG: list[tuple[str, str, Any, int, str | None, str | None]] = [
    # name, path, body, status, param, code
    ("not JSON", CHAT, b"{", 400, None, "invalid_json"),
    ("NaN", CHAT, b'{"model":"tiny","temperature":NaN,"messages":[]}', 400, None, "invalid_json"),
    ("not UTF-8", CHAT, b'{"model":"\xff"}', 400, None, "invalid_json"),
    ("empty body", CHAT, b"", 400, None, "invalid_json"),
    ("an array", CHAT, [], 400, None, "invalid_type"),
    ("no model", CHAT, body_without(chat(), "model"), 400, "model", "missing_required_parameter"),
    ("no messages", CHAT, body_without(chat(), "messages"), 400, "messages", "missing_required_parameter"),
    ("no prompt", TEXT, body_without(text(), "prompt"), 400, "prompt", "missing_required_parameter"),
    ("model is a number", CHAT, chat(model=1), 400, "model", "invalid_type"),
    ("empty messages", CHAT, chat(messages=[]), 400, "messages", "invalid_value"),
    ("messages is a string", CHAT, chat(messages="hi"), 400, "messages", "invalid_type"),
    ("unknown role", CHAT, message(role="robot"), 400, "messages[0].role", "invalid_value"),
    ("no role", CHAT, chat(messages=[{"content": "hi"}]), 400, "messages[0].role", "missing_required_parameter"),
    ("no content", CHAT, chat(messages=[{"role": "user"}]), 400, "messages[0].content", "invalid_type"),
    ("content is a number", CHAT, message(content=3), 400, "messages[0].content", "invalid_type"),
    ("no content parts", CHAT, message(content=[]), 400, "messages[0].content", "invalid_value"),
    ("a part without text", CHAT, message(content=[{"type": "text"}]), 400, "messages[0].content[0].text", "missing_required_parameter"),
    ("an image", CHAT, message(content=[{"type": "image_url", "image_url": {}}]), 400, "messages[0].content[0].type", "unsupported_value"),
    ("unknown field in a message", CHAT, message(foo=1), 400, "messages[0].foo", "unknown_parameter"),
    ("template refuses", CHAT, message(content="refuse me"), 400, "messages", "invalid_value"),
    ("unknown field", CHAT, chat(foo=1), 400, "foo", "unknown_parameter"),
    ("unknown field in text", TEXT, text(messages=[USER]), 400, "messages", "unknown_parameter"),
    ("max_tokens 0", CHAT, chat(max_tokens=0), 400, "max_tokens", "invalid_value"),
    ("max_tokens is a string", CHAT, chat(max_tokens="5"), 400, "max_tokens", "invalid_type"),
    ("max_tokens is a bool", CHAT, chat(max_tokens=True), 400, "max_tokens", "invalid_type"),
    ("both bounds", CHAT, chat(max_completion_tokens=2), 400, "max_tokens", "invalid_parameter_combination"),
    ("temperature too high", CHAT, chat(temperature=2.1), 400, "temperature", "invalid_value"),
    ("temperature below 0", TEXT, text(temperature=-0.1), 400, "temperature", "invalid_value"),
    ("infinite temperature", CHAT, b'{"model":"tiny","temperature":1e999,"messages":[]}', 400, "temperature", "invalid_value"),
    ("top_p above 1", CHAT, chat(top_p=1.01), 400, "top_p", "invalid_value"),
    ("top_k below -1", CHAT, chat(top_k=-2), 400, "top_k", "invalid_value"),
    ("seed beyond int64", CHAT, chat(seed=2**63), 400, "seed", "invalid_value"),
    ("five stops", CHAT, chat(stop=list("abcde")), 400, "stop", "invalid_value"),
    ("empty stop", CHAT, chat(stop=""), 400, "stop", "invalid_value"),
    ("empty stop in a list", CHAT, chat(stop=["a", ""]), 400, "stop[1]", "invalid_value"),
    ("min_tokens above max_tokens", CHAT, chat(min_tokens=3), 400, "min_tokens", "invalid_value"),
    ("stop id below 0", CHAT, chat(stop_token_ids=[-1]), 400, "stop_token_ids[0]", "invalid_value"),
    ("stop id beyond the vocabulary", TEXT, text(stop_token_ids=[0, 10**6]), 400, "stop_token_ids[1]", "invalid_value"),
    ("17 metadata keys", CHAT, chat(metadata={str(i): "" for i in range(17)}), 400, "metadata", "invalid_value"),
    ("long metadata key", CHAT, chat(metadata={"k" * 65: ""}), 400, "metadata", "invalid_value"),
    ("long metadata value", CHAT, chat(metadata={"k": "v" * 513}), 400, "metadata", "invalid_value"),
    ("metadata of numbers", CHAT, chat(metadata={"k": 1}), 400, "metadata", "invalid_type"),
    ("n 129", CHAT, chat(n=129), 400, "n", "invalid_value"),
    ("more choices than the engine computes at once", CHAT, chat(n=65), 400, "n", "invalid_value"),
    ("scale tier", CHAT, chat(service_tier="scale"), 400, "service_tier", "unsupported_value"),
    ("unknown tier", CHAT, chat(service_tier="gold"), 400, "service_tier", "invalid_value"),
    ("logprobs is a number", CHAT, chat(logprobs=2), 400, "logprobs", "invalid_type"),
    ("top_logprobs without logprobs", CHAT, chat(top_logprobs=1), 400, "top_logprobs", "invalid_value"),
    ("21 top_logprobs", CHAT, chat(logprobs=True, top_logprobs=21), 400, "top_logprobs", "invalid_value"),
    ("presence penalty above 2", CHAT, chat(presence_penalty=2.1), 400, "presence_penalty", "invalid_value"),
    ("frequency penalty below -2", TEXT, text(frequency_penalty=-2.1), 400, "frequency_penalty", "invalid_value"),
    ("repetition penalty 0", CHAT, chat(repetition_penalty=0), 400, "repetition_penalty", "invalid_value"),
    ("min_p above 1", TEXT, text(min_p=1.1), 400, "min_p", "invalid_value"),
    ("an echo of a chat", CHAT, chat(echo=True), 400, "echo", "unknown_parameter"),
    ("log-probabilities of named tokens", TEXT, text(logprob_token_ids=[1]), 400, "logprob_token_ids", "unknown_parameter"),
    ("log-probabilities of all tokens", TEXT, text(logprobs=-1), 400, "logprobs", "invalid_value"),
    ("log-probabilities of all tokens of a prompt", CHAT, chat(prompt_logprobs=-1), 400, "prompt_logprobs", "invalid_value"),
    ("bias above 100", CHAT, chat(logit_bias={"5": 101}), 400, "logit_bias", "invalid_value"),
    ("bias of no number", CHAT, chat(logit_bias={"5": "x"}), 400, "logit_bias", "invalid_type"),
    ("bias of a word", CHAT, chat(logit_bias={"five": 1}), 400, "logit_bias", "invalid_type"),
    ("bias of a negative id", CHAT, chat(logit_bias={"-1": 1}), 400, "logit_bias", "invalid_value"),
    ("bias beyond the vocabulary", TEXT, text(logit_bias={"1000000": 1}), 400, "logit_bias", "invalid_value"),
    ("1025 biases", CHAT, chat(logit_bias={str(i): 0 for i in range(1025)}), 400, "logit_bias", "invalid_value"),
    ("unknown format", CHAT, chat(response_format={"type": "xml"}), 400, "response_format.type", "invalid_value"),
    ("a format's unknown field", CHAT, chat(response_format={"type": "text", "foo": 1}), 400, "response_format.foo", "unknown_parameter"),
    ("no schema", CHAT, chat(response_format={"type": "json_schema"}), 400, "response_format.json_schema", "missing_required_parameter"),
    ("a schema for another type", CHAT, chat(response_format={"type": "text", "json_schema": {"name": "a"}}), 400, "response_format.json_schema", "invalid_parameter_combination"),
    ("a schema without a name", CHAT, schema({}), 400, "response_format.json_schema.name", "missing_required_parameter"),
    ("a schema's bad name", CHAT, schema({"name": "a b"}), 400, "response_format.json_schema.name", "invalid_value"),
    ("a schema's name with a line's end", CHAT, schema({"name": "a\n"}), 400, "response_format.json_schema.name", "invalid_value"),
    ("a schema that is no object", CHAT, schema({"name": "a", "schema": [1]}), 400, "response_format.json_schema.schema", "invalid_type"),
    ("a schema that cannot be enforced", CHAT, schema({"name": "a", "schema": {"unsupported": 1}}), 400, "response_format.json_schema.schema", "invalid_value"),
    ("the same in a stream", CHAT, {**schema({"name": "a", "schema": {"unsupported": 1}}), "stream": True}, 400, "response_format.json_schema.schema", "invalid_value"),
    ("a regex that cannot be enforced", TEXT, text(structured_outputs={"regex": "unsupported"}), 400, "structured_outputs.regex", "invalid_value"),
    ("two structures", TEXT, text(structured_outputs={"regex": "a", "choice": ["a"]}), 400, "structured_outputs", "invalid_value"),
    ("no structure", TEXT, text(structured_outputs={"json_object": False}), 400, "structured_outputs", "invalid_value"),
    ("no choices", TEXT, text(structured_outputs={"choice": []}), 400, "structured_outputs.choice", "invalid_value"),
    ("a structure not served", TEXT, text(structured_outputs={"regex": "a", "structural_tag": "x"}), 400, "structured_outputs.structural_tag", "unsupported_parameter"),
    ("format and structure", CHAT, chat(response_format={"type": "json_object"}, structured_outputs={"regex": "a"}), 400, "structured_outputs", "invalid_parameter_combination"),
    ("vLLM's older name", TEXT, text(guided_regex="a"), 400, "guided_regex", "unknown_parameter"),
    ("format of text", TEXT, text(response_format={"type": "json_object"}), 400, "response_format", "unknown_parameter"),
    ("n 0", CHAT, chat(n=0), 400, "n", "invalid_value"),
    ("store", CHAT, chat(store=True), 400, "store", "store_not_allowed"),
    ("audio out", CHAT, chat(modalities=["text", "audio"]), 400, "modalities", "unsupported_value"),
    ("options without a stream", CHAT, chat(stream_options={"include_usage": True}), 400, "stream_options", "invalid_parameter_combination"),
    ("best_of below n", TEXT, text(best_of=2, n=3), 400, "best_of", "invalid_value"),
    ("best_of 21", TEXT, text(best_of=21), 400, "best_of", "invalid_value"),
    ("best_of in a stream", TEXT, text(best_of=2, stream=True), 400, "best_of", "invalid_value"),
    ("six logprobs of text", TEXT, text(logprobs=6), 400, "logprobs", "invalid_value"),
    ("no tokens of text", TEXT, text(max_tokens=0), 400, "max_tokens", "invalid_value"),
    ("several choices of no tokens", TEXT, text(max_tokens=0, echo=True, n=2), 400, "max_tokens", "invalid_value"),
    ("suffix", TEXT, text(suffix="!"), 400, "suffix", "unsupported_value"),
    ("no prompts", TEXT, text(prompt=[]), 400, "prompt", "invalid_value"),
    ("empty prompt", TEXT, text(prompt=""), 400, "prompt", "invalid_value"),
    ("mixed prompts", TEXT, text(prompt=["a", 1]), 400, "prompt[1]", "invalid_type"),
    ("a text behind ids", TEXT, text(prompt=[[1], [2], "a"]), 400, "prompt[2]", "invalid_type"),
    ("ids behind a text", TEXT, text(prompt=["a", [1]]), 400, "prompt[1]", "invalid_type"),
    ("id outside the vocabulary", TEXT, text(prompt=[10**6]), 400, "prompt[0]", "invalid_value"),
    ("negative id", TEXT, text(prompt=[-1]), 400, "prompt[0]", "invalid_value"),
    ("too many prompts", TEXT, text(prompt=["a"] * 65), 400, "prompt", "invalid_value"),
    ("prompt longer than the context", TEXT, text(prompt="xyz " * 400), 400, "prompt", "context_length_exceeded"),
    ("messages longer than the context", CHAT, message(content="xyz " * 400), 400, "messages", "context_length_exceeded"),
    ("completion longer than the context", CHAT, chat(max_tokens=513), 400, "max_tokens", "context_length_exceeded"),
    ("completion by its newer name", CHAT, body_without(chat(max_completion_tokens=513), "max_tokens"), 400, "max_completion_tokens", "context_length_exceeded"),
    ("text longer than the context", TEXT, text(max_tokens=513), 400, "max_tokens", "context_length_exceeded"),
    ("no input", EMBED, {"model": "tiny"}, 400, "input", "missing_required_parameter"),
    ("empty input", EMBED, embeddings_body(""), 400, "input", "invalid_value"),
    ("no inputs", EMBED, embeddings_body([]), 400, "input", "invalid_value"),
    ("an empty input among others", EMBED, embeddings_body(["a", ""]), 400, "input[1]", "invalid_value"),
    ("2049 inputs", EMBED, embeddings_body(["a"] * 2049), 400, "input", "invalid_value"),
    ("mixed inputs", EMBED, embeddings_body(["a", 5]), 400, "input[1]", "invalid_type"),
    ("input id beyond the vocabulary", EMBED, embeddings_body([[1], [10**6]]), 400, "input[1][0]", "invalid_value"),
    ("a later prompt longer than the context", TEXT, text(prompt=["a", "xyz " * 400]), 400, "prompt[1]", "context_length_exceeded"),
    ("an id of a later prompt", TEXT, text(prompt=[[1], [1, 10**6]]), 400, "prompt[1][1]", "invalid_value"),
    ("a later prompt that is empty", TEXT, text(prompt=[[1], []]), 400, "prompt[1]", "invalid_value"),
    ("a later input longer than the context", EMBED, embeddings_body(["a", "xyz " * 400]), 400, "input[1]", "context_length_exceeded"),
    ("a later input of too many ids", EMBED, embeddings_body([[1], [1] * 513]), 400, "input[1]", "context_length_exceeded"),
    ("input longer than the context", EMBED, embeddings_body("xyz " * 400), 400, "input", "context_length_exceeded"),
    ("dimensions 0", EMBED, embeddings_body("a", dimensions=0), 400, "dimensions", "invalid_value"),
    ("more dimensions than there are", EMBED, embeddings_body("a", dimensions=33), 400, "dimensions", "invalid_value"),
    ("unknown encoding", EMBED, embeddings_body("a", encoding_format="int8"), 400, "encoding_format", "invalid_value"),
    ("unknown pooling", EMBED, embeddings_body("a", pooling="max"), 400, "pooling", "invalid_value"),
    ("unknown field of an embedding", EMBED, embeddings_body("a", stream=True), 400, "stream", "unknown_parameter"),
    ("embeddings of an unknown adapter", EMBED, {**embeddings_body("a"), "model": "tiny:nope"}, 404, "model", "model_not_found"),
    ("half a surrogate pair", CHAT, b'{"model":"\\ud800"}', 400, None, "invalid_json"),
    ("unknown model", CHAT, chat(model="gpt-4o"), 404, "model", "model_not_found"),
    ("unknown adapter", CHAT, chat(model="tiny:nope"), 404, "model", "model_not_found"),
    ("NUL in the adapter", CHAT, chat(model="tiny:a\0b"), 404, "model", "model_not_found"),
    ("adapter without a name", CHAT, chat(model="tiny:"), 404, "model", "model_not_found"),
    ("huge body", CHAT, b'"' + b"x" * (1 << 20) + b'"', 413, None, "request_too_large"),
    ("unknown path", "/v1/nothing", {}, 404, None, "unknown_url"),
    ("wrong method", "/v1/models", {}, 405, None, "method_not_allowed"),
]  # fmt: skip


@pytest.fixture(scope="module")
def http(house: House):
    with httpx.Client(
        base_url=house.url, headers={"authorization": f"Bearer {house.acme.key}"}, timeout=PATIENCE_S
    ) as client:
        yield client


@pytest.mark.parametrize(("path", "body", "status", "param", "code"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_wrong_request_is_refused_by_name(http, path, body, status, param, code):
    reply = http.post(path, content=body) if isinstance(body, bytes) else http.post(path, json=body)
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["param"], error["code"]) == (param, code)
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert reply.headers["x-request-id"].startswith("req_")
    assert reply.headers["openai-version"] == "2020-10-01"
    assert int(reply.headers["openai-processing-ms"]) >= 0


NO_EFFECT = {
    "n": 1, "store": False, "service_tier": "auto", "logprobs": False, "top_logprobs": 0, "presence_penalty": 0,
    "frequency_penalty": 0, "logit_bias": {}, "response_format": {"type": "text"}, "tools": [], "tool_choice": "none",
    "modalities": ["text"], "user": "u", "metadata": {"k": "v"}, "safety_identifier": "s",
    "prompt_cache_key": "p", "min_p": 0, "repetition_penalty": 1, "top_k": -1, "stream": False, "stop": [], "seed": -1,
}  # fmt: skip


def test_fields_without_effect_are_accepted(http):
    assert http.post(CHAT, json=chat(**NO_EFFECT)).status_code == 200


def test_null_means_the_default(http):
    assert http.post(CHAT, json=chat(**dict.fromkeys([*NO_EFFECT, "structured_outputs"]))).status_code == 200
    nothing = dict.fromkeys(["best_of", "echo", "suffix", "logprobs", "n", "logit_bias", "structured_outputs"])
    assert http.post(TEXT, json=text(**nothing)).status_code == 200
    assert (
        http.post(EMBED, json=embeddings_body("a", dimensions=None, encoding_format=None, pooling=None)).status_code
        == 200
    )


def test_roles_and_text_parts_are_accepted_whatever_the_content_type(http):
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "bob"},
        {"role": "assistant", "content": "", "tool_calls": []},
    ]
    reply = http.post(CHAT, json=chat(messages=messages), headers={"content-type": "text/plain"})
    assert reply.status_code == 200, reply.text


def test_half_a_surrogate_pair_is_called_that_and_not_a_body_cut_off(http):
    for body in (b'{"model":"\\ud800"}', b'{"model":"\\\\\\uDBFFx"}'):
        assert "surrogate" in http.post(CHAT, content=body).json()["error"]["message"]
    for body in (b'{"model":"\\\\ud800', b'{"model":"\\ud83d\\ude00'):
        assert "truncated" in http.post(CHAT, content=body).json()["error"]["message"]


def test_a_bad_byte_is_found_where_it_is_in_the_body(http):
    body = b'{"model":"tiny","messages":[{"role":"user","content":"caf\xe9"}]}'
    message = http.post(CHAT, content=body).json()["error"]["message"]
    assert f"byte {body.index(0xE9)} (0xe9)" in message


def test_a_name_is_told_its_pattern_as_the_document_has_it(http):
    message = http.post(CHAT, json=schema({"name": "a b"})).json()["error"]["message"]
    assert "^[a-zA-Z0-9_-]{1,64}$" in message
    assert "\\" not in message


def test_a_missing_key_is_401_before_the_body_is_looked_at(house: House):
    reply = httpx.post(house.url + CHAT, content=b"{", timeout=PATIENCE_S)
    assert reply.status_code == 401
    assert reply.json()["error"]["code"] == "invalid_api_key"


def test_a_default_bound_is_cut_to_what_is_left(http):
    reply = http.post(CHAT, json=body_without(chat(messages=[{**USER, "content": "x" * 450}]), "max_tokens"))
    assert reply.json()["usage"]["total_tokens"] == 512
