"""Hostile configs and checkpoints of mixtures of experts are refused in words, or computed as transformers does.

With --full 10,000 mutants of each kind. The engine's own code computes them, in float32 and as 8-bit integers by turns.
"""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from engine.config import UnsupportedModel
from engine.hardware import SetupError
from tests.engine.harness import Answer, engine_config, greedy, run_engine
from tests.engine.models.test_experts import packed
from tests.engine.models.tiny import WITH_EXPERTS, save_tiny
from tests.engine.reference import Claim, assert_greedy_follows

PROMPT = [(7 * i) % 190 + 1 for i in range(21)]
NUM_MUTANTS, NUM_MUTANTS_FULL = 25, 10_000
VALUES: tuple[Any, ...] = (
    *(
        None,
        0,
        1,
        -1,
        2,
        3,
        7,
        33,
        10**6,
        2**31,
        2**63,
        1e308,
        0.5,
        1.5,
        True,
        False,
        "x",
        "",
        [],
        {},
        [1],
        [None],
        {"a": 1},
    ),
    *(["full_attention"] * 3, ["sliding_attention"] * 3, ["linear_attention"] * 3),
    *({"rope_type": "dynamic"}, {"rope_type": "yarn", "factor": "x"}, {"rope_type": "default", "rope_theta": 500.0}),
    *({"quant_method": "mxfp4"}, {"quant_method": "fp8"}),
)
OTHER_KEYS = (
    *("quantization_config", "text_config", "n_shared_experts", "num_experts", "num_local_experts", "clip_qkv"),
    *("first_k_dense_replace", "n_group", "norm_topk_prob", "router_scale", "scoring_func", "swiglu_alpha"),
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Every family with experts, and gpt-oss in MXFP4."""
    root = tmp_path_factory.mktemp("families")
    for name in WITH_EXPERTS:
        save_tiny(name, root / name)
    save_tiny("gpt-oss", root / "mxfp4", {"hidden_size": 64, "intermediate_size": 32})
    path = root / "mxfp4" / "model.safetensors"
    tensors = load_file(path)
    for index in range(3):
        for name in ("gate_up_proj", "down_proj"):
            blocks, scales = packed(tensors.pop(f"model.layers.{index}.mlp.experts.{name}"))
            tensors[f"model.layers.{index}.mlp.experts.{name}_blocks"] = blocks.contiguous()
            tensors[f"model.layers.{index}.mlp.experts.{name}_scales"] = scales.contiguous()
    save_file(tensors, path)
    config = root / "mxfp4" / "config.json"
    quantized = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.embed_tokens"]}}
    config.write_text(json.dumps(json.loads(config.read_text()) | quantized))
    return [*(root / name for name in WITH_EXPERTS), root / "mxfp4"]


def answer_of(folder: Path, quantization: str) -> Answer | None:
    """Return the engine's answer; None if the engine refuses the folder in words."""
    config = engine_config(folder, folder / "store", decoder="own", quantization=quantization)
    try:
        return run_engine(config, [greedy("r", PROMPT, 3)])["r"]
    except (UnsupportedModel, SetupError) as refused:
        assert str(refused)
        return None


@contextmanager
def changed(path: Path, content: bytes) -> Iterator[None]:
    original = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(original)


def mutated(config: dict[str, Any], rnd: random.Random) -> dict[str, Any]:
    """Return a config with one to three wrong values, new keys or none where there were some."""
    config = dict(config)
    for _ in range(rnd.choice((1, 1, 2, 3))):
        key = rnd.choice([*sorted(config), *OTHER_KEYS])
        value = config.pop(key, None)
        if isinstance(value, int) and rnd.random() < 0.3:
            config[key] = value * rnd.choice((2, -1, 10**5))
        elif rnd.random() < 0.8:
            config[key] = rnd.choice(VALUES)
    return config


def test_mutants_of_configs(folders: list[Path], full: bool) -> None:
    """Numbers in float32 follow transformers, if transformers loads the folder with all weights in their places."""
    rnd, served, compared = random.Random(5), 0, 0
    count = NUM_MUTANTS_FULL if full else NUM_MUTANTS
    for number in range(count):
        path = rnd.choice(folders) / "config.json"
        quantization = ("none", "int8")[number % 2]
        mutant = mutated(json.loads(path.read_text()), rnd)
        with changed(path, json.dumps(mutant).encode()):
            answer = answer_of(path.parent, quantization)
            served += answer is not None
            if answer is None or quantization != "none" or path.parent.name == "mxfp4":
                continue
            if reference := reference_of(path.parent, mutant):
                compared += 1
                claim = Claim(PROMPT, answer.token_ids, answer.logprobs)
                assert_greedy_follows(reference, [claim], 1e-3)
    print(f"{served} of {count} served, {compared} compared")
    assert 0 < compared < served < count


def reference_of(folder: Path, config: dict[str, Any]) -> torch.nn.Module | None:
    """Return transformers' model of a folder; None where it has none, or would make weights up."""
    if any(isinstance(value, int) and abs(value) > 10**5 for value in config.values()):  # as long as these say
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, told = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    except Exception:  # of whatever kind: transformers refuses in many
        return None
    return None if told["missing_keys"] or told["mismatched_keys"] else model.eval()


def test_mutants_of_files(folders: list[Path], full: bool) -> None:
    """Bytes of a file's head are changed, the file is cut, or has numbers that are none."""
    rnd, served = random.Random(6), 0
    count = NUM_MUTANTS_FULL if full else NUM_MUTANTS
    for number in range(count):
        path = rnd.choice(folders) / "model.safetensors"
        content = bytearray(path.read_bytes())
        size = int.from_bytes(content[:8], "little")
        match rnd.randrange(4):
            case 0:
                content[rnd.randrange(size + 8)] = rnd.randrange(256)
            case 1:
                del content[rnd.randrange(len(content)) :]
            case 2:
                sought = (b'"shape":[', b"data_offsets", b".weight", b"F32", b"U8", b"experts.", b"_blocks", b"_scales")
                place = content.find(rnd.choice(sought), rnd.randrange(size))
                content[place + 9 : place + 10] = rnd.choice((b"9", b"0", b"]", b'"'))
            case 3:
                place = rnd.randrange(size + 8, len(content) - 4)
                content[place : place + 4] = rnd.choice((b"\xff\xff\xff\xff", b"\x00\x00\x80\x7f"))
        with changed(path, bytes(content)):
            served += answer_of(path.parent, ("none", "int8")[number % 2]) is not None
    assert served < count


def test_mutants_of_tensors(folders: list[Path], full: bool) -> None:
    """A tensor of experts or routers is left out, has another name, shape or dtype, or has one beside it: refused."""
    rnd = random.Random(7)
    for number in range(NUM_MUTANTS_FULL if full else NUM_MUTANTS):
        path = rnd.choice(folders) / "model.safetensors"
        tensors = load_file(path)
        name = rnd.choice([key for key in sorted(tensors) if "experts" in key or "router" in key or "gate" in key])
        tensor = tensors.pop(name)
        match rnd.randrange(6):
            case 1:
                tensors[name.replace("layers.", "layers.1", 1)] = tensor
            case 2:
                tensors[name] = tensor[..., :-1].contiguous()
            case 3:
                tensors[name] = torch.cat((tensor, tensor[:1]))
            case 4:
                tensors[name] = tensor
                tensors[f"{name}_more"] = tensor.clone()
            case 5 if tensor.dtype == torch.uint8:
                tensors[name] = tensor.to(rnd.choice((torch.int8, torch.float32)))
        kept = path.read_bytes()
        save_file(tensors, path)
        try:
            assert answer_of(path.parent, ("none", "int8")[number % 2]) is None, name
        finally:
            path.write_bytes(kept)
