"""Families of the engine's own code, served over HTTP from a folder of random weights: transformers' greedy ids.

One in each run of the tests, and with --full all of them: an installation of its own is started for each.
"""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
import torch

from tests.e2e.installation import Installation
from tests.engine.models.tiny import save_tiny
from tests.gateway.model_folder import make_model_folder
from tests.patience import PATIENCE_S

IN_EACH_RUN = "phi3-partial"
SERVED = (
    *(IN_EACH_RUN, "llama", "mistral-window", "ministral", "ministral3", "qwen2", "qwen3", "smollm3", "granite"),
    *("phi3-longrope", "gemma2", "gemma3", "olmo2", "olmo3", "glm", "glm4"),
    *("qwen3-moe", "mixtral", "gpt-oss", "granite-moe", "olmoe"),
    *("qwen3.5", "qwen3.5-moe", "qwen3-next", "granite-hybrid", "granite-hybrid-moe", "granite-hybrid-dense"),
)
PROMPT = [(7 * i) % 90 + 4 for i in range(45)]
NUM_TOKENS = 200


@pytest.mark.parametrize("family", SERVED)
def test_a_folder_of_a_family_answers_as_transformers_does(family: str, own_open_folder: Path, full: bool) -> None:
    if not full and family != IN_EACH_RUN:
        pytest.skip("with --full")
    folder = make_model_folder(own_open_folder / "model")
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    model = save_tiny(family, folder, {"vocab_size": size})
    installation = Installation(own_open_folder / "data")
    installation.env |= {"LORIKEET_MODEL": str(folder), "LORIKEET_MODEL_NAME": "base", "LORIKEET_DTYPE": "float32"}
    installation.env |= {"LORIKEET_QUANTIZATION": "none", "LORIKEET_DECODER": "own", "LORIKEET_DEVICE": "cpu"}
    installation.start()
    try:
        assert installation.cli("tenant", "create", "acme").returncode == 0
        key = json.loads(installation.cli("key", "create", "--tenant", "acme", "--json").stdout)["key"]
        body = {"model": "base", "prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0, "return_token_ids": True}
        headers = {"Authorization": f"Bearer {key}"}
        answer = httpx.post(
            f"{installation.url}/v1/completions", json=body | {"ignore_eos": True}, headers=headers, timeout=PATIENCE_S
        )
        assert answer.status_code == 200, answer.text
    finally:
        installation.stop()
    with torch.inference_mode():
        expected = model.generate(torch.tensor([PROMPT]), max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None)
    assert answer.json()["choices"][0]["token_ids"] == expected[0, len(PROMPT) :].tolist()
