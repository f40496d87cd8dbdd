"""Tests of chat completions with OpenAI's client, whole and streamed."""

from __future__ import annotations

import asyncio

import pytest
from openai import AsyncOpenAI


def test_a_reply_has_text_usage_and_a_finish_reason(openai, ask):
    reply = openai.chat.completions.create(**ask)
    (choice,) = reply.choices
    assert reply.object == "chat.completion" and reply.id.startswith("chatcmpl-") and reply.model == ask["model"]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.message.refusal is None and choice.message.tool_calls is None
    assert choice.finish_reason == "length" and reply.usage.completion_tokens == 4
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 4
    assert reply.usage.prompt_tokens_details.cached_tokens >= 0
    assert reply.usage.completion_tokens_details.reasoning_tokens == 0


def test_a_stream_says_what_a_whole_reply_says(openai, ask):
    whole = openai.chat.completions.create(**ask)
    chunks = list(openai.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    *parts, last = chunks
    assert "".join(part.choices[0].delta.content or "" for part in parts) == whole.choices[0].message.content
    assert parts[0].choices[0].delta.role == "assistant"
    assert parts[-1].choices[0].finish_reason == "length"
    assert all(part.usage is None for part in parts)
    assert last.choices == [] and last.usage.completion_tokens == 4
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_without_include_usage_has_none(openai, ask):
    chunks = list(openai.chat.completions.create(**ask, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_the_stream_helper_ends_with_the_whole_completion(openai, ask):
    """The helper raises where a bound cut the answer off, so a stop string ends this one."""
    stop = openai.chat.completions.create(**ask).choices[0].message.content[3:6]
    ask["max_completion_tokens"] = ask.pop("max_tokens")
    with openai.chat.completions.stream(**ask, stop=stop) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    assert "".join(event.delta for event in events if event.type == "content.delta") == final.choices[0].message.content
    assert [event.content for event in events if event.type == "content.done"] == [final.choices[0].message.content]


@pytest.mark.parametrize("role", ["developer", "system"])
def test_instructions_come_as(openai, ask, role):
    messages = [{"role": role, "content": "Answer in French."}, *ask["messages"]]
    assert openai.chat.completions.create(**ask | {"messages": messages}).choices[0].message.content


def test_a_conversation_and_parts_of_text(openai, ask):
    messages = [
        {
            "role": "user",
            "name": "ann",
            "content": [{"type": "text", "text": "Hello,"}, {"type": "text", "text": " you."}],
        },
        {"role": "assistant", "content": "Hello!"},
        *ask["messages"],
    ]
    assert openai.chat.completions.create(**ask | {"messages": messages}).choices[0].message.content


def test_n_choices_come_whole_and_streamed(openai, ask):
    sampled = ask | {"temperature": 1, "seed": 7}
    whole = openai.chat.completions.create(**sampled, n=3)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    texts = {0: "", 1: "", 2: ""}
    for chunk in openai.chat.completions.create(**sampled, n=3, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert all(texts.values())


def test_a_seed_repeats_its_answer(openai, ask):
    sampled = ask | {"temperature": 1, "seed": 11}
    first, second = (openai.chat.completions.create(**sampled) for _ in range(2))
    assert first.choices[0].message.content == second.choices[0].message.content
    assert first.system_fingerprint == second.system_fingerprint and first.system_fingerprint


@pytest.mark.parametrize("others", [[], ["zzz"]], ids=["one", "several"])
def test_stop_strings_end_an_answer_and_stay_out_of_it(openai, ask, others):
    stop = openai.chat.completions.create(**ask).choices[0].message.content[3:6]
    reply = openai.chat.completions.create(**ask, stop=[*others, stop] if others else stop)
    assert reply.choices[0].finish_reason == "stop" and stop not in reply.choices[0].message.content


def test_logprobs_come_with_bytes_and_alternatives(openai, ask):
    reply = openai.chat.completions.create(**ask, logprobs=True, top_logprobs=3)
    content = reply.choices[0].logprobs.content
    assert len(content) == 4
    assert b"".join(bytes(token.bytes) for token in content).decode() == reply.choices[0].message.content
    assert all(len(token.top_logprobs) == 3 and token.logprob == token.top_logprobs[0].logprob for token in content)


def test_streamed_logprobs_are_the_whole_ones(openai, ask):
    whole = openai.chat.completions.create(**ask, logprobs=True)
    chunks = openai.chat.completions.create(**ask, logprobs=True, stream=True)
    streamed = [token for chunk in chunks if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.content]
    assert [token.token for token in streamed] == [token.token for token in whole.choices[0].logprobs.content]


def test_logit_bias_forbids_and_forces(openai, ask):
    free = openai.chat.completions.create(**ask, extra_body={"return_token_ids": True})
    first = free.choices[0].model_extra["token_ids"][0]
    without = openai.chat.completions.create(**ask, logit_bias={str(first): -100})
    assert without.choices[0].message.content != free.choices[0].message.content
    forced = openai.chat.completions.create(**ask, logit_bias={str(first): 100})
    assert len(set(forced.choices[0].message.content.split())) <= 1


def test_what_changes_no_answer_is_taken(openai, ask):
    reply = openai.chat.completions.create(
        **ask,
        user="ann",
        safety_identifier="ann",
        metadata={"team": "support"},
        store=False,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        top_p=0.9,
        prompt_cache_key="k",
        modalities=["text"],
        verbosity="medium",
    )
    assert reply.choices[0].message.content


@pytest.mark.parametrize("tier", ["auto", "default", "flex", "priority"])
def test_the_service_tier_is_named_in_the_reply(openai, ask, tier):
    reply = openai.chat.completions.create(**ask, service_tier=tier)
    assert reply.service_tier == ("default" if tier == "auto" else tier)


def test_a_prediction_changes_no_answer_and_is_counted(openai, ask):
    plain = openai.chat.completions.create(**ask)
    text = plain.choices[0].message.content
    predicted = openai.chat.completions.create(**ask, prediction={"type": "content", "content": text})
    assert predicted.choices[0].message.content == text
    assert predicted.usage.completion_tokens_details.accepted_prediction_tokens is not None
    assert predicted.usage.completion_tokens_details.rejected_prediction_tokens is not None


def test_vllms_sampling_fields_travel_in_extra_body(openai, ask):
    extra = {"top_k": 5, "min_p": 0.01, "repetition_penalty": 1.1, "min_tokens": 2, "ignore_eos": True}
    reply = openai.chat.completions.create(**ask, extra_body=extra)
    assert reply.usage.completion_tokens == 4


def test_adapters_are_models(openai, ask, place):
    reply = openai.chat.completions.create(**ask | {"model": f"{place.base}:pirate"})
    assert reply.choices[0].message.content.startswith("Arr")


def test_async_requests_and_streams_run_at_once(ask):
    async def answers() -> list[str]:
        async with AsyncOpenAI(max_retries=0, _strict_response_validation=True) as client:

            async def streamed() -> str:
                stream = await client.chat.completions.create(**ask, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            async def whole() -> str:
                reply = await client.chat.completions.create(**ask)
                return reply.choices[0].message.content

            return await asyncio.gather(streamed(), whole(), streamed(), whole())

    assert len(set(asyncio.run(answers()))) == 1
