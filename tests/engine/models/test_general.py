"""Models that transformers computes over our cache: what its own attention computes, in fp32 within 1e-4.

Some of the families have code of our own as well; for a few, the results of both are compared. With --full, every
family of transformers that a tiny configuration can be made for is either proven or refused in words.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from adapters.errors import AdapterRejected
from adapters.peft_format import check_fit, read_adapter
from engine.config import UnsupportedModel, load_model_config
from engine.hardware import SetupError
from engine.models.general.build import load_general
from engine.protocol import EngineStats, StepOutputs
from engine.setup import with_settled_quantization
from tests.engine.harness import collect, engine_config, greedy, run_engine, run_events
from tests.engine.models.general import FAMILIES, STATEFUL, TOLERANCE, AdaptedBase, save_general
from tests.engine.models.tiny import TINY, save_tiny
from tests.engine.reference import Claim, assert_greedy_follows

BLOCK, CHUNK = 16, 32
LARGEST = 10_000_000  # parameters of a model of a family that is tried with --full
LENGTHS = (1, 7, 40, 75)  # within a block, over blocks, a window of 20 and several chunks


@pytest.mark.parametrize("family", FAMILIES)
def test_base_and_adapters_in_one_batch_equal_transformers_and_peft(family: str, tmp_path: Path, full: bool) -> None:
    """Chunks of prompts and decodes share steps, since later prompts arrive while earlier ones are answered.

    Answers of 200 tokens with --full.
    """
    base = AdaptedBase(tmp_path, family)
    requests = base.requests(LENGTHS, 200 if full else 12)
    config = base.config(max_batched_tokens=CHUNK)
    answers = run_engine(config, requests[::2], {3: requests[1::4], 5: requests[3::4]})
    base.assert_follow(requests, answers)


@pytest.fixture(scope="module")
def starcoder(tmp_path_factory: pytest.TempPathFactory) -> AdaptedBase:
    return AdaptedBase(tmp_path_factory.mktemp("starcoder"), "starcoder2")


def test_preempted_requests_and_cached_prefixes_lose_nothing(starcoder: AdaptedBase) -> None:
    """The cache suffices for few of the requests: they take turns, and find what others have left.

    Adapters are loaded before, so that each step has the same plan in every run.
    """
    requests = starcoder.requests((3, 33), 40)
    again = [greedy(f"{r.request_id}/again", [*r.prompt_token_ids, 5], 8, adapter=r.adapter) for r in requests[3:]]
    block_bytes = 2 * 3 * 2 * 8 * 4 * BLOCK
    config = starcoder.config(kv_cache_bytes=block_bytes * 12, max_model_len=190)
    events = run_events(config, requests, {70: again}, preload=filter(None, starcoder.digests.values()))
    assert max(event.preemptions_total for event in events if isinstance(event, EngineStats)) > 0
    answers = collect(events)
    assert any(answers[request.request_id].final.usage.cached_tokens for request in again)
    starcoder.assert_follow([*requests, *again], answers)


def test_cached_prefixes_of_layers_with_and_without_windows_are_gone_on_from(tmp_path: Path) -> None:
    base = AdaptedBase(tmp_path, "cohere2")
    requests = base.requests((40, 75), 6)
    again = [greedy(f"{r.request_id}/again", [*r.prompt_token_ids, 5], 8, adapter=r.adapter) for r in requests]
    answers = run_engine(base.config(max_batched_tokens=CHUNK), requests, {12: again})
    cached = [answers[request.request_id].final.usage.cached_tokens for request in again]
    assert cached == [32] * 3 + [64] * 3
    base.assert_follow([*requests, *again], answers)


def test_drafts_leave_texts_as_they_are(starcoder: AdaptedBase) -> None:
    requests = [greedy(f"{name}/r", [4, 5, 6, 7] * 6, 40, adapter=d) for name, d in starcoder.digests.items()]
    answers = run_engine(starcoder.config(num_draft_tokens=3), requests)
    starcoder.assert_follow(requests, answers)
    assert sum(answer.final.usage.draft_tokens for answer in answers.values()) > 0


def test_prompts_are_scored_and_embedded_and_masks_of_tokens_hold(starcoder: AdaptedBase) -> None:
    prompt = [(7 * i) % 190 + 1 for i in range(40)]
    asked = [
        greedy("scored", prompt, 1, num_prompt_logprobs=1),
        greedy("embedded", prompt, 0, pooling="mean"),
        greedy("masked", prompt, 6, allowed_token_ids=[17, 18], temperature=1.0, seed=3),
    ]
    events = run_events(starcoder.config(max_batched_tokens=CHUNK), asked)
    answers = collect(events)
    model = starcoder.models[""]
    with torch.inference_mode():
        logprobs = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
        hidden = model.model(torch.tensor([prompt])).last_hidden_state[0].mean(0)
    deltas = [delta for event in events if isinstance(event, StepOutputs) for delta in event.deltas]
    (scored,) = [delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs]
    for position, found in enumerate(scored[1:]):
        assert found is not None and found.logprob == pytest.approx(
            float(logprobs[position, prompt[position + 1]]), abs=TOLERANCE
        )
    embedding = torch.frombuffer(bytearray(answers["embedded"].final.embedding or b""), dtype=torch.float32)
    torch.testing.assert_close(embedding, hidden / hidden.norm(), rtol=0, atol=TOLERANCE)
    assert set(answers["masked"].token_ids) <= {17, 18}


@pytest.mark.parametrize("family", ["qwen3", "smollm3-windows", "gemma3"])
def test_own_code_and_transformers_agree_on_a_family_that_has_both(family: str, tmp_path: Path) -> None:
    save_tiny(family, tmp_path / "model")
    torch.manual_seed(2)
    requests = [greedy(f"r{length}", torch.randint(0, 199, (length,)).tolist(), 16) for length in LENGTHS]
    config = engine_config(tmp_path / "model", tmp_path / "store", max_batched_tokens=CHUNK)
    own = run_engine(config, requests)
    general = run_engine(msgspec.structs.replace(config, decoder="transformers"), requests)
    for request in requests:
        ours, theirs = own[request.request_id], general[request.request_id]
        assert ours.token_ids == theirs.token_ids
        for a, b in zip(ours.logprobs, theirs.logprobs, strict=True):
            assert a.top_logprobs == pytest.approx(b.top_logprobs, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("family", "changes", "why"),
    [
        ("no-such-family", {}, "model_type"),
        ("qwen3", {"model_type": "no-such-family", "auto_map": {"AutoModelForCausalLM": "evil.Model"}}, "no-such-fam"),
        ("starcoder2", {"is_encoder_decoder": True}, "is_encoder_decoder"),
        ("starcoder2", {"add_cross_attention": True}, "add_cross_attention"),
        ("starcoder2", {"alibi": True}, "alibi"),
        ("starcoder2", {"is_causal": False}, "is_causal: attention in both directions is not supported"),
        ("starcoder2", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ("starcoder2", {"layer_types": ["linear_attention"] * 3}, "layer_types has layers of linear_attention"),
        ("starcoder2", {"layer_types": ["full_attention"]}, "layer_types names 1 layers of 3"),
        ("starcoder2", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope type dynamic"),
        ("starcoder2", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope type dynamic"),
        ("starcoder2", {"hidden_size": "48"}, "hidden_size must be a whole number"),
        ("starcoder2", {"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ("starcoder2", {"num_hidden_layers": 4}, "the checkpoint lacks model.layers.3"),
        ("starcoder2", {"num_hidden_layers": 2}, "tensors the config does not explain: model.layers.2"),
        ("starcoder2", {"intermediate_size": 95}, "other shapes"),
        ("deepseek_v3", {"n_group": 3}, "cannot compute a text over our cache by this config.json"),
        ("bloom", {"n_layer": 3, "n_head": 6}, "attention interface"),
    ],
)
def test_what_cannot_be_served_is_refused_by_key_and_name(
    family: str, changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    if family == "no-such-family":
        (tmp_path / "config.json").write_text(json.dumps(dict(TINY, model_type=family)))
    else:
        save_general(family, tmp_path, **(changes if family == "bloom" else {}))
        path = tmp_path / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UnsupportedModel, match=why):
        run_engine(engine_config(tmp_path, tmp_path / "store", decoder="transformers"), [])


def test_weights_that_overflow_are_refused_as_such(tmp_path: Path) -> None:
    save_general("starcoder2", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("c_proj.weight"))
    save_file(tensors | {name: torch.full_like(tensors[name], 3e38)}, path, {"format": "pt"})
    with pytest.raises(UnsupportedModel, match=r"checkpoint's weights give Starcoder2ForCausalLM logits .* not finite"):
        run_engine(engine_config(tmp_path, tmp_path / "store", decoder="transformers"), [])


@pytest.mark.parametrize(("family", "changes"), STATEFUL.items())
def test_a_state_beside_keys_and_values_is_found_and_refused(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Each layer has attention as well, so that only a text that is computed in pieces shows that another state is
    missing."""
    save_general(family, tmp_path, **changes)
    with pytest.raises(UnsupportedModel, match="it keeps a state beside keys and values"):
        run_engine(engine_config(tmp_path, tmp_path / "store"), [])


def test_code_that_comes_with_a_model_is_never_run(tmp_path: Path) -> None:
    """A folder with code for a family that transformers knows is computed by transformers' own class."""
    model = save_general("starcoder2", tmp_path)
    (tmp_path / "modeling_evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Model: pass\n")
    path = tmp_path / "config.json"
    auto_map = {"AutoConfig": "modeling_evil.Model", "AutoModelForCausalLM": "modeling_evil.Model"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_map": auto_map}))
    answer = run_engine(engine_config(tmp_path, tmp_path / "store"), [greedy("r", [1, 2, 3], 8)])["r"]
    assert_greedy_follows(model, [Claim([1, 2, 3], answer.token_ids, answer.logprobs)], TOLERANCE)
    assert not (tmp_path / "ran").exists()


def test_an_adapter_on_experts_is_refused_by_name(tmp_path: Path) -> None:
    base = AdaptedBase(tmp_path, "qwen3_moe")
    lora = LoraConfig(r=2, target_modules=["q_proj"], target_parameters=["mlp.experts.gate_up_proj"])
    get_peft_model(AutoModelForCausalLM.from_pretrained(base.folder), lora).save_pretrained(tmp_path / "experts")
    config = load_model_config(base.folder, "transformers")
    with pytest.raises(
        AdapterRejected, match=r"mlp.experts\[4\].gate_up_proj: the base model takes no adapter on experts"
    ):
        check_fit(read_adapter(tmp_path / "experts"), config.adapter_targets(), config.num_layers)


def test_a_format_of_integers_is_refused(tmp_path: Path) -> None:
    save_general("starcoder2", tmp_path)
    with pytest.raises(SetupError, match="LORIKEET_QUANTIZATION is int8"):
        with_settled_quantization(engine_config(tmp_path, tmp_path / "store", quantization="int8"))


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3", "phi3"])
def test_what_gateways_read_without_torch_is_what_the_engine_finds(family: str, tmp_path: Path) -> None:
    save_general(family, tmp_path)
    config = load_model_config(tmp_path, "transformers")
    found = load_general(tmp_path, config, torch.float32, torch.device("cpu")).config
    assert set(found.modules) <= set(config.modules)
    routers = {name for name, _, _ in config.modules} - {name for name, _, _ in found.modules}
    assert routers <= {"mlp.gate", "mlp.router", "block_sparse_moe.gate", "block_sparse_moe.router.layer"}


def test_every_family_of_transformers_is_proven_or_refused_in_words(full: bool, tmp_path: Path) -> None:
    """A line is printed for each family. A family whose default sizes are large, or whose config needs more, is left
    out."""
    if not full:
        pytest.skip("with --full")
    proven = 0
    for family in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        try:
            with torch.device("meta"):
                made = AutoModelForCausalLM.from_config(
                    AutoConfig.for_model(family, **(TINY | FAMILIES.get(family, {})))
                )
            if sum(parameter.numel() for parameter in made.parameters()) > LARGEST:
                continue
            save_general(family, tmp_path / family)
        except Exception as error:  # whatever a family says of sizes that do not fit each other
            print(f"{family}: not made: {str(error)[:100]}")
            continue
        try:
            config = load_model_config(tmp_path / family, "transformers")
            found = load_general(tmp_path / family, config, torch.float32, torch.device("cpu")).config
            print(f"{family}: {', '.join(name for name, _, _ in found.modules)}")
            proven += 1
        except UnsupportedModel as refused:
            print(f"{family}: refused: {refused}")
        shutil.rmtree(tmp_path / family)
    assert proven >= 60


def test_a_config_that_asks_for_more_than_the_files_have_takes_no_memory(tmp_path: Path) -> None:
    save_general("starcoder2", tmp_path)
    for key, value in (("hidden_size", 1 << 24), ("intermediate_size", 1 << 24), ("vocab_size", 1 << 30)):
        path = tmp_path / "config.json"
        original = path.read_text()
        path.write_text(json.dumps(json.loads(original) | {key: value}))
        with pytest.raises(UnsupportedModel, match=r"asks for|makes no model"):
            load_general(tmp_path, load_model_config(tmp_path, "transformers"), torch.float32, torch.device("cpu"))
        path.write_text(original)
