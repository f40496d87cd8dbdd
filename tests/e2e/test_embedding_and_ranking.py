"""Models that embed and rank, served over HTTP from a folder: the figures of transformers for each text alone.

The formulas are those of sentence-transformers. One purpose in every run, the others with --full.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from tests.e2e.installation import Installation
from tests.engine.models.encoders import save_decoder, save_encoder, write_modules
from tests.gateway.model_folder import make_model_folder
from tests.installation.waiting import wait_until
from tests.patience import PATIENCE_S

QUERY = "how are you?"
DOCUMENTS = ["the lazy dog", "hello there, how are you today? " * 3, "stop", "the quick brown fox jumps over the dog"]
INPUTS = ["input_ids", "token_type_ids", "attention_mask"]
PROMPTS = {"query": "search: ", "document": "text: "}


@pytest.mark.parametrize("purpose", ["rank", "embed", "embed-decoder"])
def test_a_folder_answers_as_transformers_does(purpose: str, own_open_folder: Path, full: bool) -> None:
    if purpose != "rank" and not full:
        pytest.skip("with --full")
    folder = make_model_folder(own_open_folder / "model")
    tokenizer = paired_tokenizer(folder)
    size = tokenizer.backend_tokenizer.get_vocab_size()
    model: Any
    if purpose == "embed-decoder":
        model = save_decoder(folder, "embed", vocab_size=size, max_position_embeddings=512)
        write_modules(folder, pooling={"pooling_mode": "lasttoken"}, normalize=True, prompts=PROMPTS)
    else:
        sizes = {"vocab_size": size, "max_position_embeddings": 512}
        model = save_encoder("bert", folder, ranks=purpose == "rank", **sizes)
        if purpose == "embed":
            write_modules(folder, pooling={"pooling_mode_cls_token": True}, prompts=PROMPTS, default_prompt="document")
    with (
        serving(folder, own_open_folder / "data") as (url, key),
        httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE_S) as client,
    ):
        chat = client.post(
            "/v1/chat/completions", json={"model": "base", "messages": [{"role": "user", "content": "hello"}]}
        )
        assert chat.status_code == 400 and "alone" in chat.json()["error"]["message"], chat.text
        if purpose == "rank":
            _check_ranks(client, model, tokenizer)
        else:
            _check_embeds(client, model, tokenizer, is_decoder=purpose == "embed-decoder")


@contextmanager
def serving(folder: Path, data_dir: Path) -> Iterator[tuple[str, str]]:
    """Serve a folder of a model in float32 as `base`; yield the server's URL and a tenant's key."""
    installation = Installation(data_dir)
    installation.env |= {"LORIKEET_MODEL": str(folder), "LORIKEET_MODEL_NAME": "base", "LORIKEET_DTYPE": "float32"}
    installation.env |= {"LORIKEET_QUANTIZATION": "none", "LORIKEET_DEVICE": "cpu"}
    installation.start()
    try:
        wait_until(
            lambda: httpx.get(f"{installation.url}/health/ready", timeout=PATIENCE_S).status_code == 200, pause_s=0.2
        )
        assert installation.cli("tenant", "create", "acme").returncode == 0
        key = json.loads(installation.cli("key", "create", "--tenant", "acme", "--json").stdout)["key"]
        yield installation.url, key
    finally:
        installation.stop()


def paired_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Return the folder's tokenizer, with tokens around and between texts."""
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    start, end = (backend.token_to_id(token) for token in ("<|im_start|>", "<|im_end|>"))
    backend.post_processor = processors.TemplateProcessing(
        single="<|im_start|>:0 $A:0 <|im_end|>:0",
        pair="<|im_start|>:0 $A:0 <|im_end|>:0 $B:1 <|im_end|>:1",
        special_tokens=[("<|im_start|>", start), ("<|im_end|>", end)],
    )
    backend.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").unlink()
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_input_names": INPUTS, "pad_token": "<|im_end|>"}))
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=INPUTS)


def _check_ranks(client: httpx.Client, model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    body = {"model": "base", "query": QUERY, "documents": DOCUMENTS, "return_documents": True}
    reply = client.post("/v1/rerank", json=body)
    assert reply.status_code == 200, reply.text
    with torch.inference_mode():
        scores = [
            float(model(**tokenizer(QUERY, document, return_tensors="pt")).logits.sigmoid()) for document in DOCUMENTS
        ]
    results = reply.json()["results"]
    assert [each["index"] for each in results] == sorted(range(len(scores)), key=lambda index: -scores[index])
    assert [each["relevance_score"] for each in results] == pytest.approx(sorted(scores, reverse=True), abs=1e-5)
    assert [each["document"]["text"] for each in results] == [DOCUMENTS[each["index"]] for each in results]


def _check_embeds(client: httpx.Client, model: Any, tokenizer: PreTrainedTokenizerFast, *, is_decoder: bool) -> None:
    usual = "" if is_decoder else PROMPTS["document"]
    for fields, prompt in (
        ({}, usual),
        ({"input_type": "search_query"}, "search: "),
        ({"prompt_name": "document"}, "text: "),
    ):
        reply = client.post("/v1/embeddings", json={"model": "base", "input": DOCUMENTS, **fields})
        assert reply.status_code == 200, reply.text
        for document, each in zip(DOCUMENTS, reply.json()["data"], strict=True):
            with torch.inference_mode():
                states = model(**tokenizer(prompt + document, return_tensors="pt")).last_hidden_state[0]
            expected = states[-1] / states[-1].norm() if is_decoder else states[0]
            assert each["embedding"] == pytest.approx(expected.tolist(), abs=1e-4)
    refused = client.post("/v1/embeddings", json={"model": "base", "input": "a", "prompt_name": "poem"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_name")
