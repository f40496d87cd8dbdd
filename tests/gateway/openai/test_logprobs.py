"""Log-probabilities: one entry per token of the text that is shown, with exact bytes, streamed or not."""

from __future__ import annotations

import openai
import pytest

from tests.gateway.conftest import House

EURO = "€"  # three bytes, three tokens


@pytest.fixture
def client(house: House):
    with openai.OpenAI(base_url=f"{house.url}/v1", api_key=house.acme.key, max_retries=0) as client:
        yield client


def chat(client, **fields):
    fields = {"max_tokens": 30, "logprobs": True, "top_logprobs": 2} | fields
    messages = [{"role": "user", "content": f"{EURO} and {EURO}"}]
    return client.chat.completions.create(model="tiny", messages=messages, **fields)


def test_chat_names_each_token_with_its_bytes(client):
    (choice,) = chat(client).choices
    content = choice.logprobs.content
    joined = b"".join(bytes(entry.bytes) for entry in content)
    assert EURO.encode() in joined
    assert any(entry.token == "\ufffd" and len(entry.bytes) == 1 for entry in content)
    # The text leaves out special tokens, such as the one that ends a message.
    assert (
        joined.decode(errors="ignore")
        .replace("<|im_start|>", "")
        .replace("<|im_end|>", "")
        .startswith(choice.message.content.rstrip("\ufffd"))
    )
    assert len(content) == 30
    for entry in content:
        assert entry.logprob == entry.top_logprobs[0].logprob > entry.top_logprobs[1].logprob
        assert entry.top_logprobs[0].bytes == entry.bytes


@pytest.mark.parametrize("stop", [None, "an", f"d {EURO}"])
def test_streamed_logprobs_are_those_of_the_whole(client, stop):
    whole = chat(client, stop=stop).choices[0]
    streamed, text = [], ""
    for chunk in chat(client, stop=stop, stream=True):
        text += chunk.choices[0].delta.content or ""
        streamed += chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else []
    assert text == whole.message.content
    assert streamed == whole.logprobs.content
    assert whole.finish_reason == ("length" if stop is None else "stop")
    if stop is not None:  # of the tokens that hold a part of the stop string, only one that shows text is listed
        before_last = b"".join(bytes(entry.bytes) for entry in streamed[:-1]).decode().replace("<|im_start|>", "")
        assert text.startswith(before_last)
        assert before_last != text


def test_without_top_logprobs_there_are_none(client):
    assert all(entry.top_logprobs == [] for entry in chat(client, top_logprobs=None).choices[0].logprobs.content)
    assert chat(client, logprobs=False, top_logprobs=None).choices[0].logprobs is None


def test_text_completions_list_tokens_and_offsets(client):
    reply = client.completions.create(model="tiny", prompt="abcdxyz", max_tokens=3, logprobs=2)
    shown = reply.choices[0].logprobs
    assert (shown.tokens, shown.text_offset) == (["a", "b", "c"], [0, 1, 2])
    assert [list(top) for top in shown.top_logprobs] == [["a", "b"], ["b", "c"], ["c", "d"]]
    assert shown.token_logprobs == [max(top.values()) for top in shown.top_logprobs]
    zero = client.completions.create(model="tiny", prompt="abcdxyz", max_tokens=1, logprobs=0).choices[0].logprobs
    assert [list(top) for top in zero.top_logprobs] == [["a"]]


@pytest.mark.parametrize("prompt", ["abcdxyz", [68, 69, 70]], ids=["text", "ids"])
@pytest.mark.parametrize("max_tokens", [0, 2])
def test_an_echo_shows_the_prompt_and_its_logprobs(client, prompt, max_tokens):
    asked = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "echo": True, "logprobs": 1}
    reply = client.completions.create(**asked)
    choice, shown = reply.choices[0], reply.choices[0].logprobs
    assert reply.usage.completion_tokens == max_tokens
    assert len(choice.text) == len(prompt) + max_tokens
    assert "".join(shown.tokens) == choice.text
    assert shown.text_offset == list(range(len(choice.text)))
    assert (shown.token_logprobs[0], shown.top_logprobs[0]) == (None, None)
    assert None not in shown.token_logprobs[1:]
    text, offsets = "", []
    for chunk in client.completions.create(**asked, stream=True):
        text += chunk.choices[0].text
        offsets += chunk.choices[0].logprobs.text_offset if chunk.choices[0].logprobs else []
    assert (text, offsets) == (choice.text, shown.text_offset)


def test_an_echo_without_logprobs_is_text_alone(client):
    for max_tokens, text in [(0, "abcdxyz"), (2, "abcdxyzab")]:
        reply = client.completions.create(model="tiny", prompt="abcdxyz", max_tokens=max_tokens, echo=True)
        assert (reply.choices[0].text, reply.choices[0].logprobs) == (text, None)
