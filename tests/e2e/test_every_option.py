"""The options that only a real engine can honour: choices, log-probabilities, penalties, grammars, embeddings."""

from __future__ import annotations

import json

import pytest
from openai import BadRequestError, OpenAI

from tests.e2e.installation import BASE, Installation
from tests.e2e.test_openai_client import QUESTION, client

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture
def openai(installation: Installation):
    with client(installation, "OPENAI_API_KEY", strict=False) as openai:
        yield openai


@pytest.mark.parametrize("model", [BASE, f"{BASE}:pirate"])
def test_seeded_choices_are_the_same_again_and_differ_from_each_other(openai: OpenAI, model: str) -> None:
    asked = {"model": model, "messages": QUESTION, "max_tokens": 12, "n": 3, "seed": 7, "temperature": 1.0}
    first, again = (openai.chat.completions.create(**asked) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert len(set(texts)) > 1
    # bfloat16 in batches of other shapes may choose differently late in a text, never at its start
    assert [(choice.message.content or "")[:1] for choice in again.choices] == [(text or "")[:1] for text in texts]
    assert first.usage is not None and first.usage.completion_tokens <= 36


def test_log_probabilities_are_of_the_text(openai: OpenAI) -> None:
    reply = openai.chat.completions.create(
        model=BASE, messages=QUESTION, max_tokens=16, temperature=0, logprobs=True, top_logprobs=3
    )
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None and logprobs.content
    assert b"".join(bytes(entry.bytes or []) for entry in logprobs.content).decode() == reply.choices[0].message.content
    for entry in logprobs.content:
        assert entry.logprob == max(top.logprob for top in entry.top_logprobs) <= 0


def test_a_prompt_can_be_scored_without_an_answer(openai: OpenAI) -> None:
    reply = openai.completions.create(
        model=BASE, prompt="The capital of France is Paris", max_tokens=0, echo=True, logprobs=1
    )
    shown = reply.choices[0].logprobs
    assert shown is not None and shown.token_logprobs is not None and shown.token_logprobs[0] is None
    assert all(logprob <= 0 for logprob in shown.token_logprobs[1:])
    assert reply.choices[0].text == "The capital of France is Paris"


def test_a_bias_forces_a_token(openai: OpenAI) -> None:
    reply = openai.completions.create(
        model=BASE, prompt="Once", max_tokens=4, logit_bias={"42": 100}, extra_body={"min_tokens": 4}, logprobs=0
    )
    shown = reply.choices[0].logprobs
    assert shown is not None and shown.tokens is not None and len(set(shown.tokens)) == 1


@pytest.mark.parametrize("model", [BASE, f"{BASE}:pirate"])
def test_an_answer_matches_its_schema_whatever_the_adapter(openai: OpenAI, model: str) -> None:
    reply = openai.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Describe a person."}],
        max_tokens=120,
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}},
    )
    if reply.choices[0].finish_reason == "stop":
        person = json.loads(reply.choices[0].message.content or "")
        assert set(person) == {"name", "age"} and 0 <= person["age"] <= 99 and len(person["name"]) <= 8


def test_one_of_the_choices_is_the_answer(openai: OpenAI) -> None:
    reply = openai.completions.create(
        model=BASE, prompt="Yes or no?", max_tokens=8, extra_body={"structured_outputs": {"choice": ["yes", "no"]}}
    )
    assert reply.choices[0].text in ("yes", "no")


def test_text_that_is_no_grammar_is_refused_by_the_name_of_its_field(openai: OpenAI) -> None:
    with pytest.raises(BadRequestError) as refused:
        openai.completions.create(model=BASE, prompt="a", extra_body={"structured_outputs": {"regex": "(("}})
    assert refused.value.param == "structured_outputs.regex"


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embeddings_are_unit_vectors_of_their_text_and_adapter(openai: OpenAI, pooling: str) -> None:
    def embed(model: str, *texts: str) -> list[list[float]]:
        reply = openai.embeddings.create(model=model, input=list(texts), extra_body={"pooling": pooling})
        return [each.embedding for each in reply.data]

    cat, again, stocks = embed(BASE, "A cat sat.", "A cat sat.", "Stocks fell sharply today.")
    assert sum(x * x for x in cat) == pytest.approx(1, abs=1e-3)
    assert sum(x * y for x, y in zip(cat, again, strict=True)) > 0.999
    assert sum(x * y for x, y in zip(cat, stocks, strict=True)) < 0.999
    (pirate,) = embed(f"{BASE}:pirate", "A cat sat.")
    assert pirate != cat


def test_a_long_prompt_is_cached_the_second_time(openai: OpenAI) -> None:
    prompt = "A story about lorikeets, told slowly. " * 12
    usages = [openai.completions.create(model=BASE, prompt=prompt, max_tokens=1).usage for _ in range(2)]
    cached = [usage.prompt_tokens_details.cached_tokens for usage in usages if usage and usage.prompt_tokens_details]
    assert cached[0] == 0
    assert cached[1] is not None and cached[1] > 16
