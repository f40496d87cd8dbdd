"""Tests of text completions with OpenAI's client: every kind of prompt, echo, log-probabilities, candidates,
streams."""

from __future__ import annotations

import asyncio

import openai as package
import pytest
from openai import AsyncOpenAI

PROMPTS = [("Once upon", 1), (["Once upon", "A time"], 2), ([504, 3280, 282], 1), ([[504, 3280], [282, 504, 3280]], 2)]
KINDS = ["text", "texts", "token ids", "lists of token ids"]


@pytest.fixture
def complete(place) -> dict[str, object]:
    return {"model": place.base, "prompt": "Once upon a time", "max_tokens": 5, "temperature": 0}


@pytest.mark.parametrize(("prompt", "num_choices"), PROMPTS, ids=KINDS)
def test_a_prompt_may_be(openai, complete, prompt, num_choices):
    reply = openai.completions.create(**complete | {"prompt": prompt})
    assert reply.object == "text_completion" and reply.usage.completion_tokens == 5 * num_choices
    assert [choice.index for choice in reply.choices] == list(range(num_choices))


def test_a_stream_says_what_a_whole_reply_says(openai, lenient, complete):
    whole = openai.completions.create(**complete)
    chunks = list(lenient.completions.create(**complete, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole.choices[0].text
    assert chunks[-2].choices[0].finish_reason == "length" and chunks[-1].usage.completion_tokens == 5


def test_echo_and_logprobs_cover_prompt_and_answer(lenient, complete):
    reply = lenient.completions.create(**complete, echo=True, logprobs=2)
    (choice,) = reply.choices
    assert choice.text.startswith("Once upon a time")
    logprobs = choice.logprobs
    assert "".join(logprobs.tokens) == choice.text and logprobs.text_offset[0] == 0
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs)
    assert len(logprobs.tokens) == reply.usage.prompt_tokens + 5
    assert logprobs.token_logprobs[0] is None and all(value <= 0 for value in logprobs.token_logprobs[1:])


def test_echo_alone_reads_the_prompt(lenient, complete):
    reply = lenient.completions.create(**complete | {"max_tokens": 0}, echo=True, logprobs=0)
    assert reply.choices[0].text == "Once upon a time" and reply.usage.completion_tokens == 0


def test_logprobs_without_echo_validate_strictly(openai, complete):
    (choice,) = openai.completions.create(**complete, logprobs=5).choices
    assert len(choice.logprobs.tokens) == 5 and all(len(top) >= 5 for top in choice.logprobs.top_logprobs)


def test_best_of_shows_the_likeliest(openai, complete):
    reply = openai.completions.create(**complete | {"temperature": 1}, n=2, best_of=4, seed=3)
    assert [choice.index for choice in reply.choices] == [0, 1]


def test_a_stop_string_ends_the_text(openai, complete):
    whole = openai.completions.create(**complete).choices[0].text
    stop = whole.split()[1]
    reply = openai.completions.create(**complete, stop=[stop])
    assert reply.choices[0].finish_reason == "stop" and stop not in reply.choices[0].text


def test_a_suffix_is_refused_by_name(openai, complete):
    with pytest.raises(package.BadRequestError) as refused:
        openai.completions.create(**complete, suffix="the end")
    assert refused.value.param == "suffix"


def test_async(complete):
    async def answer() -> str:
        async with AsyncOpenAI(max_retries=0, _strict_response_validation=True) as client:
            return (await client.completions.create(**complete)).choices[0].text

    assert asyncio.run(answer())
