"""Models some of whose layers keep a state in place of keys and values, over every boundary of the engine's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

from adapters.errors import AdapterRejected
from adapters.peft_format import check_fit, read_adapter
from engine.config import EngineConfig, UnsupportedModel, load_model_config
from engine.hardware import SetupError
from engine.sequence import Plan
from engine.setup import with_settled_quantization
from tests.engine.harness import collect, engine_config, greedy, run_engine, run_events
from tests.engine.models.general import AdaptedBase
from tests.engine.models.tiny import FAMILIES, TINY, save_tiny
from tests.engine.reference import Claim, assert_greedy_follows

CHUNK = 32
BLOCK = 16
LENGTHS = (1, 17, 40, 100)
WITH_STATES = ("qwen3.5", "granite-hybrid")
WITH_EXPERTS = ("qwen3.5-moe", "qwen3-next", "granite-hybrid-moe")
ADAPTERS: dict[str, dict[str, Any]] = {
    "all": {"r": 5, "target_modules": "all-linear"},
    "states": {
        "r": 3,
        "target_modules": ["in_proj_qkv", "in_proj_a", "in_proj", "in_proj_qkvz", "in_proj_ba", "out_proj"],
    },
    "attention": {"r": 2, "target_modules": ["q_proj", "o_proj"], "rank_pattern": {"q_proj": 6}},
}
ON_EXPERTS: dict[str, dict[str, Any]] = {
    "experts": {"target_modules": ["out_proj"], "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]},
    "shared": {
        "target_modules": [
            *("q_proj", "in_proj_qkvz", "in_proj_ba", "in_proj_z", "in_proj_b", "shared_expert_gate"),
            *(f"shared_expert.{name}_proj" for name in ("gate", "up", "down")),
            *("shared_mlp.input_linear", "shared_mlp.output_linear"),
        ]
    },
}


class HybridBase(AdaptedBase):
    """A tiny model with states, and adapters on all linears, on those of states, of attention, and on experts."""

    def __init__(self, root: Path, name: str) -> None:
        config_class, _, changes = FAMILIES[name]
        adapters = dict(ADAPTERS | (ON_EXPERTS if name in WITH_EXPERTS else {}))
        if name == "qwen3-next":  # where PEFT's all linears are routers, too
            del adapters["all"]
        super().__init__(root, config_class.model_type, adapters, **changes)

    def config(self, **changes: object) -> EngineConfig:
        return engine_config(self.folder, self.store, **({"decoder": "own"} | changes))


@pytest.mark.filterwarnings("ignore:The following .* keys did not match:RuntimeWarning")  # of PEFT, as in test_experts
@pytest.mark.parametrize("name", [*WITH_STATES, *WITH_EXPERTS])
def test_base_and_adapters_in_one_batch_equal_transformers_and_peft(name: str, tmp_path: Path, full: bool) -> None:
    """Chunks of prompts and decodes share steps. Answers have 200 tokens with --full."""
    base = HybridBase(tmp_path, name)
    requests = base.requests(LENGTHS, 200 if full else 12)
    config = base.config(max_batched_tokens=CHUNK)
    answers = run_engine(config, requests[::2], {3: requests[1::4], 5: requests[3::4]})
    base.assert_follow(requests, answers)


def cache_bytes(folder: Path, num_blocks: int, max_num_seqs: int) -> int:
    """Return the bytes of a cache with a number of blocks, and of the state slots for a number of sequences."""
    model = load_model_config(folder)
    assert model.recurrence is not None
    block = 2 * len(model.cached_layers) * model.num_kv_heads * model.head_dim * 4 * BLOCK
    slots = 2 * max_num_seqs * model.recurrence.state_bytes
    assert slots <= num_blocks * block, "slots would not be of that number"
    return num_blocks * block + slots


@pytest.mark.parametrize("name", WITH_STATES)
@pytest.mark.parametrize("max_num_seqs", [1, 8])
def test_a_prompt_goes_on_from_a_snapshot_of_one_that_began_alike(name: str, max_num_seqs: int, tmp_path: Path) -> None:
    """The first text leaves a snapshot at its end, the second one at the end of what both have in common."""
    model = save_tiny(name, tmp_path / "model")
    torch.manual_seed(3)
    common, *others = (torch.randint(0, 199, (length,)).tolist() for length in (67, 30, 30, 30))
    prompts = {"first": common + others[0], "again": common + others[0], "second": common + others[1]}
    prompts |= {"third": common + others[2], "longer": common + others[0] + others[1]}
    config = engine_config(
        tmp_path / "model",
        tmp_path / "store",
        max_batched_tokens=CHUNK,
        kv_cache_bytes=cache_bytes(tmp_path / "model", 80, max_num_seqs),
        max_num_seqs=max_num_seqs,
    )
    requests = [greedy(key, prompt, 12) for key, prompt in prompts.items()]
    answers = run_engine(config, requests[:1], {6 * i: [request] for i, request in enumerate(requests[1:], 1)})
    for key, prompt in prompts.items():
        answer = answers[key]
        assert answer.final.finish_reason == "length", answer.final.error
        assert_greedy_follows(model, [Claim(prompt, answer.token_ids, answer.logprobs)], 1e-4)
    found = {key: answers[key].final.usage.cached_tokens for key in prompts}
    expected = {"first": 0, "again": 96, "second": 0, "third": 64, "longer": 96}
    # Of two slots the one beside the running sequence has the snapshot that was taken last.
    assert found == (expected if max_num_seqs > 1 else expected | {"longer": 64})


@pytest.mark.parametrize("name", WITH_STATES)
@pytest.mark.parametrize("max_num_seqs", [2, 6])
def test_texts_that_give_way_are_computed_again(name: str, max_num_seqs: int, tmp_path: Path) -> None:
    """Six texts share a cache with room for three, so that some lose their blocks and states on the way."""
    model = save_tiny(name, tmp_path / "model")
    torch.manual_seed(4)
    prompts = [torch.randint(0, 199, (length,)).tolist() for length in (70, 33, 48, 5, 64, 90)]
    config = engine_config(
        tmp_path / "model",
        tmp_path / "store",
        max_batched_tokens=CHUNK,
        kv_cache_bytes=cache_bytes(tmp_path / "model", 20, max_num_seqs),
        max_num_seqs=max_num_seqs,
    )
    plans: list[Plan] = []
    requests = [greedy(f"r{i}", prompt, 40) for i, prompt in enumerate(prompts)]
    answers = collect(run_events(config, requests, on_plan=plans.append))
    for request in requests:
        answer = answers[request.request_id]
        assert answer.final.finish_reason == "length", answer.final.error
        assert_greedy_follows(model, [Claim(request.prompt_token_ids, answer.token_ids, answer.logprobs)], 1e-4)
    num_computed = sum(plan.num_tokens for plan in plans)
    assert max_num_seqs == 2 or num_computed > sum(len(prompt) + 39 for prompt in prompts), "nobody gave way"


@pytest.mark.parametrize("name", WITH_STATES)
def test_choices_of_one_request_go_on_from_the_snapshot_of_the_first(name: str, tmp_path: Path) -> None:
    model = save_tiny(name, tmp_path / "model")
    prompt = torch.randint(0, 199, (50,)).tolist()
    plans: list[Plan] = []
    request = msgspec.structs.replace(greedy("r", prompt, 6), n=3)
    events = run_events(engine_config(tmp_path / "model", tmp_path / "store"), [request], on_plan=plans.append)
    answer = collect(events)["r"]
    assert answer.final.usage.completion_tokens == 18
    assert sum(plan.num_tokens for plan in plans) == 50 + 2 * 2 + 3 * 5
    with torch.inference_mode():
        expected = model.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False, eos_token_id=None)
    assert sorted(answer.token_ids) == sorted(expected[0, 50:].tolist() * 3)


@pytest.mark.parametrize(("name", "module"), [("qwen3.5", "linear_attn.out_proj"), ("granite-hybrid", "mamba.in_proj")])
def test_an_adapter_on_a_layer_of_the_other_kind_is_refused(name: str, module: str, tmp_path: Path) -> None:
    """Layer 1 attends, and the others keep states."""
    base = HybridBase(tmp_path, name)
    config, path = load_model_config(base.folder), tmp_path / "all" / "adapter_model.safetensors"
    tensors = load_file(path)
    fit = config.adapter_targets(), config.num_layers, config.layers_of_targets()
    check_fit(read_adapter(tmp_path / "all"), *fit)
    moved = {key.replace("layers.0", "layers.1"): value.clone() for key, value in tensors.items() if module in key}
    moved |= {key.replace("layers.1", "layers.2"): value.clone() for key, value in tensors.items() if "q_proj" in key}
    save_file(tensors | moved, path)
    described = tmp_path / "all" / "adapter_config.json"
    names = {key.split(".lora_")[0].rpartition(".")[2] for key in tensors}
    described.write_text(json.dumps(json.loads(described.read_text()) | {"target_modules": sorted(names)}))
    with pytest.raises(AdapterRejected) as refused:
        check_fit(read_adapter(tmp_path / "all"), *fit)
    assert refused.value.reasons == [
        f"layer 1 {module}: the base model takes no adapter there",
        "layer 2 q_proj: the base model takes no adapter there",
    ]


@pytest.mark.parametrize(
    ("name", "change", "key"),
    [
        ("qwen3.5", {"layer_types": ["linear_attention"] * 3}, "layer_types has no layer that attends"),
        ("qwen3.5", {"layer_types": ["linear_attention", "full_attention"]}, "layer_types must list 3 times"),
        ("qwen3.5", {"layer_types": ["linear_attention", "full_attention", "conv"]}, "layer_types must list 3 times"),
        ("qwen3.5", {"linear_num_value_heads": 3}, "linear_num_value_heads must be a multiple"),
        ("qwen3.5", {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim must be above 1"),
        ("qwen3.5", {"linear_key_head_dim": 0}, "linear_key_head_dim"),
        ("qwen3.5", {"linear_key_head_dim": 1 << 20}, "channels; at most"),
        ("qwen3.5", {"hidden_act": "gelu"}, "hidden_act"),
        ("qwen3.5", {"num_experts": 8}, "num_experts is not supported"),
        ("qwen3.5", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ("granite-hybrid", {"mamba_d_head": 7}, "mamba_n_heads times mamba_d_head"),
        ("granite-hybrid", {"mamba_n_groups": 3}, "mamba_n_heads must be a multiple of mamba_n_groups"),
        ("granite-hybrid", {"mamba_d_state": "x"}, "mamba_d_state"),
        ("granite-hybrid", {"time_step_limit": [0.001, 0.1]}, "time_step_limit"),
        ("granite-hybrid", {"position_embedding_type": "alibi"}, "position_embedding_type"),
        ("granite-hybrid", {"shared_intermediate_size": 0}, "shared_intermediate_size"),
    ],
)
def test_options_that_would_make_wrong_states_are_refused_by_key(
    name: str, change: dict[str, object], key: str, tmp_path: Path
) -> None:
    config_class, _, changes = FAMILIES[name]
    raw = json.loads(json.dumps(config_class(**(TINY | changes)).to_dict(), default=str)) | {"time_step_limit": None}
    (tmp_path / "config.json").write_text(json.dumps(raw | change))
    with pytest.raises(UnsupportedModel, match=key):
        load_model_config(tmp_path)


def test_layers_by_their_older_names_are_the_same(tmp_path: Path) -> None:
    config_class, _, changes = FAMILIES["granite-hybrid"]
    config_class(**(TINY | changes)).save_pretrained(tmp_path)
    expected = load_model_config(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text()) | {"layer_types": ["mamba", "attention", "mamba"]}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert load_model_config(tmp_path) == expected
    raw["layers_block_type"] = raw.pop("layer_types")
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert load_model_config(tmp_path) == expected


def test_the_text_model_of_one_for_text_and_images_is_computed_alone(tmp_path: Path) -> None:
    _, _, changes = FAMILIES["qwen3.5"]
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 48}
    vision |= {"num_position_embeddings": 16}
    torch.manual_seed(2)
    config = Qwen3_5Config(text_config=TINY | changes, vision_config=vision)
    model = Qwen3_5ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path / "model")
    prompt = torch.randint(0, 199, (40,)).tolist()
    answer = run_engine(engine_config(tmp_path / "model", tmp_path / "store"), [greedy("r", prompt, 12)])["r"]
    assert_greedy_follows(model, [Claim(prompt, answer.token_ids, answer.logprobs)], 1e-4)
    raw = json.loads((tmp_path / "model" / "config.json").read_text())
    for text in (None, {"model_type": "llama"}):
        (tmp_path / "model" / "config.json").write_text(json.dumps(raw | {"text_config": text}))
        with pytest.raises(UnsupportedModel, match="text_config must be of the model_type qwen3_5_text"):
            load_model_config(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(json.dumps(raw | {"is_causal": False}))
    with pytest.raises(UnsupportedModel, match="is_causal: attention in both directions is not supported"):
        load_model_config(tmp_path / "model")


def test_matrices_of_a_model_with_states_stay_as_they_are(tmp_path: Path) -> None:
    save_tiny("qwen3.5", tmp_path / "model")
    config = engine_config(tmp_path / "model", tmp_path / "store", quantization="auto")
    assert with_settled_quantization(config).quantization == "none"
    with pytest.raises(SetupError, match="PyTorch computes this model's states"):
        with_settled_quantization(msgspec.structs.replace(config, quantization="int8"))


def test_a_cache_without_room_for_two_states_is_refused(tmp_path: Path) -> None:
    save_tiny("granite-hybrid", tmp_path / "model")
    config = engine_config(tmp_path / "model", tmp_path / "store", kv_cache_bytes=30_000)
    with pytest.raises(SetupError, match="LORIKEET_KV_CACHE_BYTES is 30000; the states of one sequence take"):
        run_engine(config, [])
