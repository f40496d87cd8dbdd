"""Models that transformers computes, and mixtures of experts, served over HTTP: a completion has transformers' ids.

With --full only: an installation of its own is started for each family.
"""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
import torch

from tests.e2e.installation import Installation
from tests.engine.models.general import FAMILIES, save_general
from tests.gateway.model_folder import make_model_folder
from tests.patience import PATIENCE_S

PROMISED = ("gemma2", "gemma3_text", "phi3", "granite", "smollm3", "olmo2", "qwen3_moe", "mixtral", "gpt_oss")
PROMPT = [(7 * i) % 90 + 4 for i in range(45)]
NUM_TOKENS = 40


EXPERTS = ("qwen3_moe", "mixtral", "gpt_oss", "granitemoe")
WAYS = [*((family, "transformers") for family in dict.fromkeys((*PROMISED, *FAMILIES)))]
WAYS += [(family, "own") for family in EXPERTS]


@pytest.mark.parametrize(("family", "decoder"), WAYS)
def test_a_folder_of_a_family_answers_as_transformers_does(
    family: str, decoder: str, own_open_folder: Path, full: bool
) -> None:
    if not full:
        pytest.skip("with --full")
    folder = make_model_folder(own_open_folder / "model")
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    model = save_general(family, folder, vocab_size=size, tie_word_embeddings=False)
    installation = Installation(own_open_folder / "data")
    installation.env |= {"LORIKEET_MODEL": str(folder), "LORIKEET_MODEL_NAME": "base", "LORIKEET_DTYPE": "float32"}
    installation.env |= {"LORIKEET_QUANTIZATION": "none", "LORIKEET_DECODER": decoder, "LORIKEET_DEVICE": "cpu"}
    installation.start()
    try:
        assert installation.cli("tenant", "create", "acme").returncode == 0
        key = json.loads(installation.cli("key", "create", "--tenant", "acme", "--json").stdout)["key"]
        body = {"model": "base", "prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0, "return_token_ids": True}
        body |= {"ignore_eos": True}
        headers = {"Authorization": f"Bearer {key}"}
        answer = httpx.post(f"{installation.url}/v1/completions", json=body, headers=headers, timeout=PATIENCE_S)
        assert answer.status_code == 200, answer.text
        banner = (installation.data_dir / "serve.out").read_text()
    finally:
        installation.stop()
    with torch.inference_mode():
        expected = model.generate(torch.tensor([PROMPT]), max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None)
    assert answer.json()["choices"][0]["token_ids"] == expected[0, len(PROMPT) :].tolist()
    assert ("through transformers (slower)" in banner) == (decoder == "transformers")
