"""Models that transformers computes over our cache: what its own attention computes, in fp32 within 1e-4.

Families without code of ours, and one that has both ways. With --full, every family of transformers that a tiny
configuration can be made for is either proven or refused in words.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from adapters.store import AdapterStore
from engine.config import UnsupportedModel, load_model_config
from engine.hardware import SetupError
from engine.protocol import EngineStats, GenerateRequest
from engine.setup import settled
from tests.engine.harness import Answer, collect, engine_config, greedy, run_engine, run_events
from tests.engine.models.general import ADAPTED, FAMILIES, save_general
from tests.engine.models.tiny import save_tiny
from tests.engine.reference import Claim, assert_greedy_follows

TOLERANCE = 1e-4
BLOCK, CHUNK = 16, 32
LENGTHS = (1, 7, 40, 75)  # within a block, over blocks, a window of 20 and several chunks


class Base:
    """A tiny model in a folder, adapters on all its linears and on some of them, and peft's models of each."""

    def __init__(self, root: Path, family: str) -> None:
        self.folder, self.store = root / "model", root / "store"
        self.models: dict[str, torch.nn.Module] = {"": save_general(family, self.folder)}
        self.digests = {"": ""}
        for name, lora in ADAPTED.get(family, {}).items():
            torch.manual_seed(len(name))
            model = get_peft_model(AutoModelForCausalLM.from_pretrained(self.folder), lora)
            with torch.no_grad():
                for parameter_name, parameter in model.named_parameters():
                    if "lora_" in parameter_name:
                        parameter.normal_(0, 0.1)
            model.save_pretrained(root / name)
            self.digests[name] = AdapterStore(self.store).add(root / name)
            base = AutoModelForCausalLM.from_pretrained(self.folder)
            self.models[name] = PeftModel.from_pretrained(base, root / name).eval()

    def requests(self, lengths: tuple[int, ...], num_tokens: int) -> list[GenerateRequest]:
        """Return a request of each length for the base and each adapter."""
        torch.manual_seed(5)
        return [
            greedy(f"{name}/{length}", torch.randint(0, 199, (length,)).tolist(), num_tokens, adapter=digest)
            for length in lengths
            for name, digest in self.digests.items()
        ]

    def assert_follow(self, requests: list[GenerateRequest], answers: dict[str, Answer]) -> None:
        for request in requests:
            answer = answers[request.request_id]
            assert answer.final.finish_reason == "length", answer.final.error
            claim = Claim(request.prompt_token_ids, answer.token_ids, answer.logprobs)
            assert_greedy_follows(self.models[request.request_id.partition("/")[0]], [claim], TOLERANCE)


@pytest.mark.parametrize("family", FAMILIES)
def test_base_and_adapters_in_one_batch_equal_transformers_and_peft(family: str, tmp_path: Path) -> None:
    """Chunks of prompts and decodes share steps, since later prompts arrive while earlier ones are answered."""
    base = Base(tmp_path, family)
    requests = base.requests(LENGTHS, 12)
    config = engine_config(base.folder, base.store, max_batched_tokens=CHUNK)
    answers = run_engine(config, requests[::2], {3: requests[1::4], 5: requests[3::4]})
    base.assert_follow(requests, answers)
