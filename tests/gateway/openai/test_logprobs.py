"""Log-probabilities: one entry per token of the text that is shown, with exact bytes, streamed or not."""

from __future__ import annotations

import openai
import pytest

from engine.protocol import TokenLogprobs
from gateway.backends.generation import Token
from gateway.backends.text.choices import prompt_tokens
from gateway.openai.shared.logprobs import text_logprobs, token_name
from tests.gateway.conftest import House
from tests.gateway.text.vocabularies import KINDS

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
    if stop is not None:  # a token with a part of the stop string is listed only if it shows text
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


def test_text_completions_name_pieces_of_characters_by_their_bytes(client):
    asked = {"model": "tiny", "prompt": f"{EURO}a{EURO}", "max_tokens": 7, "logprobs": 5}
    shown = client.completions.create(**asked).choices[0].logprobs
    assert shown.tokens == [
        "bytes:\\xe2",
        "bytes:\\x82",
        "bytes:\\xac",
        "a",
        "bytes:\\xe2",
        "bytes:\\x82",
        "bytes:\\xac",
    ]
    for token, logprob, top in zip(shown.tokens, shown.token_logprobs, shown.top_logprobs, strict=True):
        assert top[token] == logprob == max(top.values())
        assert len(top) == 5, "none falls together with another"
    echoed = client.completions.create(**asked, echo=True).choices[0].logprobs
    assert echoed.tokens == shown.tokens * 2
    streamed = [chunk.choices[0].logprobs for chunk in client.completions.create(**asked, stream=True)]
    assert [token for each in streamed if each for token in each.tokens] == shown.tokens


def test_tokens_can_be_named_by_their_ids(client):
    extra = {"return_tokens_as_token_ids": True, "return_token_ids": True, "prompt_logprobs": 1}
    asked = {"model": "tiny", "prompt": f"{EURO}a", "max_tokens": 4, "logprobs": 2}
    choice = client.completions.create(**asked, extra_body=extra).choices[0]
    names = [f"token_id:{token_id}" for token_id in choice.token_ids]
    assert choice.logprobs.tokens == names
    for name, top in zip(names, choice.logprobs.top_logprobs, strict=True):
        assert name in top and len(top) == 2 and all(each.startswith("token_id:") for each in top)
    assert "token_id" not in str(choice.prompt_logprobs), "which name their tokens by id anyway"
    del extra["prompt_logprobs"]
    shown = [chunk.choices[0].logprobs for chunk in client.completions.create(**asked, stream=True, extra_body=extra)]
    assert [token for each in shown if each for token in each.tokens] == names
    whole = chat(client, max_tokens=5, extra_body=extra).choices[0]
    assert [each.token for each in whole.logprobs.content] == [f"token_id:{token_id}" for token_id in whole.token_ids]
    chunks = [chunk.choices[0] for chunk in chat(client, max_tokens=5, extra_body=extra, stream=True)]
    assert [each for chunk in chunks if chunk.logprobs for each in chunk.logprobs.content] == whole.logprobs.content


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b" the", " the"),
        ("€".encode(), "€"),
        (b"", ""),
        (b"\\xf0", "\\xf0"),
        (b"\xf0\x9f", "bytes:\\xf0\\x9f"),
        (b" \xf0\x9f", "bytes: \\xf0\\x9f"),
        (b"\n\\\xf0", "bytes:\\x0a\\x5c\\xf0"),
    ],
)
def test_a_token_is_named_by_its_text_or_its_bytes(raw: bytes, name: str):
    assert token_name(raw) == name


def test_tokens_of_one_text_are_told_apart_and_the_chosen_one_keeps_its_name():
    vocabulary = {1: b"a", 2: b"a", 3: b"a", 4: b"", 5: b"", 6: b"b"}
    logprobs = TokenLogprobs(-2.0, [1, 3, 4, 5, 6], [-0.5, -0.6, -0.7, -0.8, -0.9])
    shown = text_logprobs([Token(2, 0, logprobs)], vocabulary.__getitem__)
    assert shown.tokens == ["a"]
    assert shown.top_logprobs == [
        {"token_id:1": -0.5, "token_id:3": -0.6, "": -0.7, "token_id:5": -0.8, "b": -0.9, "a": -2.0}
    ]


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


@pytest.mark.parametrize("given", ["text", "ids", "cut"])
def test_an_echo_is_the_prompt_with_its_special_tokens(client, given):
    text = "ab<|im_start|>c<|im_end|>"
    prompt = [64, 65, 300, 66, 301] if given == "ids" else "zz" * (given == "cut") + text
    asked = {"model": "tiny", "prompt": prompt, "max_tokens": 2, "echo": True, "logprobs": 1}
    if given == "cut":
        asked["extra_body"] = {"truncate_prompt_tokens": 5}
    choice = client.completions.create(**asked).choices[0]
    assert choice.text == f"{text}ab"
    assert choice.logprobs.tokens == ["a", "b", "<|im_start|>", "c", "<|im_end|>", "a", "b"]
    assert choice.logprobs.text_offset == [0, 1, 2, 14, 15, 25, 26]
    chunks = list(client.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text
    offsets = [each for chunk in chunks if (shown := chunk.choices[0].logprobs) for each in shown.text_offset]
    assert offsets == choice.logprobs.text_offset


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("hello", [0, 0, 0, 1, 2, 3, 4, 5]),
        ("hello<s>", [0, 0, 0, 1, 2, 3, 4, 5, 8]),
        (None, [0, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
async def test_a_special_token_that_the_tokenizer_adds_is_no_part_of_an_echo(text: str | None, starts: list[int]):
    tokenizer = KINDS["sentencepiece"]()
    (special,) = tokenizer.encode_text("<s>", add_special_tokens=False)
    ids = [special, *tokenizer.encode_text(text or "hello", add_special_tokens=False), special]
    tokens = await prompt_tokens(tokenizer, ids, [None] * len(ids), text=text)
    assert [token.start for token in tokens] == starts


def test_an_echo_without_logprobs_is_text_alone(client):
    for max_tokens, text in [(0, "abcdxyz"), (2, "abcdxyzab")]:
        reply = client.completions.create(model="tiny", prompt="abcdxyz", max_tokens=max_tokens, echo=True)
        assert (reply.choices[0].text, reply.choices[0].logprobs) == (text, None)
