"""/tokenize returns the tokens that a request would have, /detokenize undoes it, and neither costs a token."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.gateway.conftest import House
from tests.patience import PATIENCE_S

MESSAGES = [{"role": "user", "content": "hello there €"}]


@pytest.fixture
def client(house: House) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=house.url, headers={"authorization": f"Bearer {house.acme.key}"}, timeout=PATIENCE_S
    ) as client:
        yield client


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_detokenize_undoes_tokenize(client: httpx.Client, prefix: str) -> None:
    text = "the quick brown fox € 💥 <|im_start|>"
    told = client.post(f"{prefix}/tokenize", json={"model": "tiny", "prompt": text}).json()
    assert told["count"] == len(told["tokens"])
    assert told["max_model_len"] == 512
    back = client.post(f"{prefix}/detokenize", json={"model": "tiny", "tokens": told["tokens"]}).json()
    assert back == {"prompt": text}


def test_tokenize_returns_as_many_tokens_as_are_billed(client: httpx.Client) -> None:
    for model in ("tiny", "tiny:pirate"):
        for path, body in (
            ("/v1/completions", {"prompt": "hello €"}),
            ("/v1/chat/completions", {"messages": MESSAGES}),
        ):
            told = client.post("/tokenize", json={"model": model, **body}).json()
            reply = client.post(path, json={"model": model, "max_tokens": 1, "return_token_ids": True, **body}).json()
            assert told["count"] == reply["usage"]["prompt_tokens"]
            ids = reply.get("prompt_token_ids") or reply["choices"][0]["prompt_token_ids"]
            assert told["tokens"] == ids


def test_tokenize_returns_the_vocabularys_own_strings_on_request(client: httpx.Client) -> None:
    told = client.post("/tokenize", json={"model": "tiny", "prompt": "a b", "return_token_strs": True}).json()
    assert told["token_strs"] == ["a", "Ġ", "b"]


def test_another_tenants_adapter_is_not_there(house: House, client: httpx.Client) -> None:
    for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
        error = client.post(path, json={"model": f"tiny:{house.globex.adapter}", **body}).json()["error"]
        assert error["code"] == "model_not_found"
