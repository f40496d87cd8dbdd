"""Replies have every field that OpenAI's documents name, and say the same whole and streamed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from tests.gateway.conftest import House
from tests.patience import PATIENCE_S

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "tiny", "messages": [{"role": "user", "content": "hello there €, and again"}], "max_tokens": 30},
    TEXT: {"model": "tiny", "prompt": "hello there €, and again", "max_tokens": 30},
}
USAGE = {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details"}


@pytest.fixture
def client(house: House) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=house.url, headers={"authorization": f"Bearer {house.acme.key}"}, timeout=PATIENCE_S
    ) as client:
        yield client


def whole_reply(client: httpx.Client, path: str, **fields: Any) -> dict[str, Any]:
    reply = client.post(path, json=BODIES[path] | fields)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def stream_chunks(client: httpx.Client, path: str, **fields: Any) -> list[dict[str, Any]]:
    reply = client.post(path, json=BODIES[path] | fields | {"stream": True, "stream_options": {"include_usage": True}})
    assert reply.status_code == 200, reply.text
    return [msgspec.json.decode(each.removeprefix("data: ")) for each in reply.text.split("\n\n")[:-2]]


def texts(path: str, reply: dict[str, Any]) -> str:
    shown = [each["text"] if path == TEXT else each["message"]["content"] for each in reply["choices"]]
    return "".join(shown)


def streamed_text(path: str, chunks: list[dict[str, Any]]) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(each["text"] if path == TEXT else each["delta"].get("content") or "" for each in choices)


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_every_documented_field_is_there(client: httpx.Client, path: str) -> None:
    top = {"id", "object", "created", "model", "choices", "usage", "system_fingerprint"}
    if path == CHAT:
        top |= {"service_tier"}
    reply = whole_reply(client, path)
    assert set(reply) == top
    assert set(reply["usage"]) == USAGE
    (choice,) = reply["choices"]
    assert set(choice) == {"index", "finish_reason", "logprobs", "message" if path == CHAT else "text"}
    if path == CHAT:
        assert {"role", "content", "refusal", "annotations"} <= set(choice["message"])
    chunks = stream_chunks(client, path)
    assert all(set(chunk) == top for chunk in chunks)
    for name in top - {"choices", "usage"}:
        assert len({chunk[name] for chunk in chunks}) == 1, name
    assert set(chunks[-1]["usage"]) == USAGE


def test_a_fingerprint_stands_for_engine_and_adapter(house: House, client: httpx.Client) -> None:
    prints = {model: whole_reply(client, CHAT, model=model)["system_fingerprint"] for model in ("tiny", "tiny:pirate")}
    assert prints["tiny"] != prints["tiny:pirate"]
    for path in (CHAT, TEXT):
        for model, expected in prints.items():
            assert whole_reply(client, path, model=model, seed=1)["system_fingerprint"] == expected
    others = {"authorization": f"Bearer {house.globex.key}"}
    reply = client.post(TEXT, json=BODIES[TEXT] | {"model": f"tiny:{house.globex.adapter}"}, headers=others)
    assert reply.json()["system_fingerprint"] not in prints.values()


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_token_ids_are_those_of_the_text_whole_and_streamed(client: httpx.Client, path: str) -> None:
    last_id = whole_reply(client, path, return_token_ids=True)["choices"][0]["token_ids"][7]
    for fields in (
        *({}, {"stop": " a"}, {"stop": "€"}, {"logprobs": True if path == CHAT else 1}, {"n": 2}),
        *({"stop_token_ids": [last_id]}, {"stop_token_ids": [last_id], "stop": "€", "n": 3}, {"max_tokens": 1}),
        *({"stop_token_ids": [last_id], "logprobs": True if path == CHAT else 1}, {"stop": "€", "min_tokens": 9}),
    ):
        reply = whole_reply(client, path, return_token_ids=True, **fields)
        chunks = stream_chunks(client, path, return_token_ids=True, **fields)
        for choice in reply["choices"]:
            mine = [each for chunk in chunks for each in chunk["choices"] if each["index"] == choice["index"]]
            assert [token for each in mine for token in each.get("token_ids") or []] == choice["token_ids"]
            body = {"tokens": choice["token_ids"]}
            text = client.post("/detokenize", json=body).json()["prompt"]
            if "stop_token_ids" in fields and "stop" not in fields:
                assert (choice["finish_reason"], choice["token_ids"][-1]) == ("stop", last_id)
            for special in ("<|im_start|>", "<|im_end|>"):
                text = text.replace(special, "")
            shown = choice["text"] if path == TEXT else choice["message"]["content"]
            assert text.startswith(shown.rstrip("\ufffd")), "with what completed a stop string"
        assert sum(len(each["token_ids"]) for each in reply["choices"]) == reply["usage"]["completion_tokens"]
        assert chunks[-1]["usage"]["completion_tokens"] == reply["usage"]["completion_tokens"]
        prompt = (reply if path == CHAT else reply["choices"][0])["prompt_token_ids"]
        assert len(prompt) == reply["usage"]["prompt_tokens"]
        first = chunks[0] if path == CHAT else chunks[0]["choices"][0]
        assert first["prompt_token_ids"] == prompt


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("stop", [" a", "€", ["nothing", "e€", ", "]])
def test_the_stop_string_can_be_shown(client: httpx.Client, path: str, stop: Any) -> None:
    short = texts(path, whole_reply(client, path, stop=stop))
    long = texts(path, whole_reply(client, path, stop=stop, include_stop_str_in_output=True))
    assert long.startswith(short)
    assert long[len(short) :] in ([stop] if isinstance(stop, str) else stop)
    assert streamed_text(path, stream_chunks(client, path, stop=stop, include_stop_str_in_output=True)) == long


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_special_tokens_can_be_shown(client: httpx.Client, path: str) -> None:
    fields = {"skip_special_tokens": False} | ({"prompt": "a<|im_start|>b"} if path == TEXT else {})
    shown = texts(path, whole_reply(client, path, **fields))
    assert "<|im_start|>" in shown
    assert streamed_text(path, stream_chunks(client, path, **fields)) == shown


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_log_probabilities_of_the_prompt_name_each_of_its_tokens(client: httpx.Client, path: str) -> None:
    reply = whole_reply(client, path, prompt_logprobs=1, return_token_ids=True, max_tokens=1)
    where = reply if path == CHAT else reply["choices"][0]
    (first, *rest), ids = where["prompt_logprobs"], where["prompt_token_ids"]
    assert first is None
    assert len(rest) == len(ids) - 1
    for shown, token_id in zip(rest, ids[1:], strict=True):
        chosen = shown[str(token_id)]
        assert set(chosen) == {"logprob", "rank", "decoded_token"}
        assert chosen["logprob"] <= 0
        assert chosen["rank"] in (1, None)
    shown_text = "".join(shown[str(token_id)]["decoded_token"] for shown, token_id in zip(rest, ids[1:], strict=True))
    assert "there" in shown_text and "again" in shown_text


def test_a_predictions_tokens_are_counted_as_kept_or_not(client: httpx.Client) -> None:
    plain = whole_reply(client, CHAT)
    text = texts(CHAT, plain)
    assert plain["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 0
    predicted = whole_reply(client, CHAT, prediction={"type": "content", "content": [{"type": "text", "text": text}]})
    assert texts(CHAT, predicted) == text
    counts = predicted["usage"]["completion_tokens_details"]
    told = client.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["count"]
    assert counts["accepted_prediction_tokens"] + counts["rejected_prediction_tokens"] == told
    chunks = stream_chunks(client, CHAT, prediction={"type": "content", "content": text})
    assert chunks[-1]["usage"]["completion_tokens_details"] == counts


def test_of_a_prediction_no_more_is_accepted_than_a_stop_string_leaves(client: httpx.Client) -> None:
    text = texts(CHAT, whole_reply(client, CHAT))
    predicted = "<|im_start|>" + text  # as the prompt begins, which is what is repeated
    reply = whole_reply(client, CHAT, prediction={"type": "content", "content": predicted}, stop=text[4:6])
    usage = reply["usage"]
    assert (texts(CHAT, reply), reply["choices"][0]["finish_reason"]) == (text[:4], "stop")
    assert 0 < usage["completion_tokens_details"]["accepted_prediction_tokens"] <= usage["completion_tokens"] < 30
