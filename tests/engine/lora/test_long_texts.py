"""Long texts of the base and of adapters side by side are those of transformers and peft, for every family.

With --full, of 200 tokens and of all families; without, of the families whose rotation changes on the way.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from adapters.store import AdapterStore
from tests.engine.harness import Answer, engine_config, greedy, run_engine
from tests.engine.models.tiny import FAMILIES, WITH_EXPERTS, save_tiny
from tests.engine.reference import Claim, assert_greedy_follows

BY_LENGTH = ("phi3-longrope",)
"""Families whose rotary embedding depends on the text's length, and changes after SWITCH tokens."""
SWITCH = 64
WITH_ROUTERS = (*WITH_EXPERTS, "qwen3-next", "qwen3.5-moe", "granite-hybrid-moe")
"""Families whose routers are linears that accept no adapters. `test_experts` has adapters on experts."""
LORAS = {
    "all": LoraConfig(r=5, lora_alpha=7, target_modules="all-linear"),
    "output": LoraConfig(r=3, lora_alpha=9, use_rslora=True, target_modules=["o_proj"]),
}
LENGTHS = (1, 40, 64, 133)


def adapted(root: Path, lora: LoraConfig, name: str) -> torch.nn.Module:
    """Return peft's model of an adapter with random weights, which is saved below the root."""
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(root / "model"), lora)
    torch.manual_seed(len(name))
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "lora_" in parameter_name:
                parameter.normal_(0, 0.1)
    model.save_pretrained(root / name)
    base = AutoModelForCausalLM.from_pretrained(root / "model")
    return PeftModel.from_pretrained(base, root / name).eval()


def claims_of(family: str, prompt: list[int], answer: Answer) -> list[Claim]:
    """Return the claims about an answer: two, where the rotary embedding changes during the answer."""
    num_short = max(1 + SWITCH - len(prompt), 0) if family in BY_LENGTH else 0
    parts = [(0, num_short), (num_short, len(answer.token_ids))]
    return [
        Claim([*prompt, *answer.token_ids[:first]], answer.token_ids[first:last], answer.logprobs[first:last])
        for first, last in parts
        if first < last
    ]


@pytest.mark.filterwarnings("ignore:The following .* keys did not match:RuntimeWarning")  # of PEFT, as in test_experts
@pytest.mark.filterwarnings("ignore:target_parameters=.* were set:RuntimeWarning")
@pytest.mark.parametrize("family", FAMILIES)
def test_long_texts_of_base_and_adapters_in_one_batch_equal_peft(family: str, tmp_path: Path, full: bool) -> None:
    if not full and family not in BY_LENGTH:
        pytest.skip("with --full")
    num_tokens = 200 if full else 30
    models: dict[str, torch.nn.Module] = {"": save_tiny(family, tmp_path / "model")}
    store, digests = AdapterStore(tmp_path / "store"), {"": ""}
    for name, lora in LORAS.items():
        if family in WITH_ROUTERS and name == "all":  # PEFT's all linears are routers there, too
            lora = LoraConfig(r=5, lora_alpha=7, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
        models[name] = adapted(tmp_path, lora, name)
        digests[name] = store.add(tmp_path / name)
    torch.manual_seed(3)
    requests = [
        greedy(f"{name}/{length}", torch.randint(0, 199, (length,)).tolist(), num_tokens, adapter=digest)
        for length in LENGTHS
        for name, digest in digests.items()
    ]
    config = engine_config(tmp_path / "model", tmp_path / "store", max_batched_tokens=48)
    answers = run_engine(config, requests[:7], {3: requests[7:]})
    for request in requests:
        answer = answers[request.request_id]
        assert answer.final.finish_reason == "length", answer.final.error
        assert len(answer.token_ids) == num_tokens
        for claim in claims_of(family, request.prompt_token_ids, answer):
            assert_greedy_follows(models[request.request_id.partition("/")[0]], [claim], tolerance=1e-4)
