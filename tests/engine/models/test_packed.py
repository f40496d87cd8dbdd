"""Quantized checkpoints of the hub's tools: read to the number, served, and refused in words where they are wrong."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from adapters.ref import content_key
from adapters.store import AdapterStore
from engine.config import ModelConfig, Projection, UnsupportedModel, load_model_config, model_digest
from engine.cpu.quantization import load_quantized, settle_format
from engine.models.checkpoint import load_weights
from engine.models.packed.files import PackedFiles
from kernels.cpu.library import installed
from kernels.cpu.linear import NativeLinear
from tests.engine.harness import engine_config, greedy, run_engine
from tests.engine.lora.trained import train
from tests.engine.models.packing import (
    BLOCKS,
    GPTQ,
    METHODS,
    SIZES,
    WIDE,
    compressed_tensors_config,
    save_packed,
    write_config,
)
from tests.engine.models.tiny import save_tiny
from tests.engine.reference import Claim, assert_greedy_follows

needs_library = pytest.mark.skipif(installed() is None, reason="the native kernels are not built: run make")
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("method", "sizes"),
    [*((method, SIZES) for method in METHODS), *((method, WIDE) for method in ("fp8-blocks", "float-blocks"))],
    ids=lambda value: value if isinstance(value, str) else str(value["hidden_size"]),
)
def test_matrices_are_the_numbers_of_the_format(method: str, sizes: dict[str, Any], tmp_path: Path) -> None:
    model = save_packed(method, tmp_path, sizes=sizes)
    config = load_model_config(tmp_path)
    with PackedFiles(tmp_path, config) as files:
        for name, wanted in model.state_dict().items():
            if "_proj" not in name:
                continue
            found = files.matrix(name, (wanted.shape[0], wanted.shape[1]))
            assert found is not None
            torch.testing.assert_close(found.dequantized(), wanted, rtol=1e-6, atol=0)
            torch.testing.assert_close(files.get_slice(name)[:], wanted, rtol=1e-6, atol=0)


@pytest.mark.parametrize("method", METHODS)
def test_a_model_of_a_method_answers_as_its_dequantized_reference(method: str, tmp_path: Path) -> None:
    model = save_packed(method, tmp_path / "model")
    prompts = [torch.randint(0, 199, (length,)).tolist() for length in (1, 40)]
    config = engine_config(tmp_path / "model", tmp_path / "store", max_batched_tokens=32)
    answers = run_engine(config, [greedy(f"r{i}", prompt, 8) for i, prompt in enumerate(prompts)])
    for i, prompt in enumerate(prompts):
        answer = answers[f"r{i}"]
        assert_greedy_follows(model, [Claim(prompt, answer.token_ids, answer.logprobs)], tolerance=1e-4)


@pytest.mark.parametrize("family", ["phi3", "glm", "qwen2"])
@pytest.mark.parametrize("method", ["awq-32", "float-rows", "gptq-order", "fp8-tensor"])
def test_fused_and_reordered_matrices_are_taken_apart(family: str, method: str, tmp_path: Path) -> None:
    """Phi-3 has fused matrices, and GLM-4 heads whose neighbours are rotated together."""
    sizes = SIZES if family == "glm" else {key: value for key, value in SIZES.items() if key != "head_dim"}
    model = save_packed(method, tmp_path / "model", family, sizes)
    prompt = torch.randint(0, 199, (20,)).tolist()
    answer = run_engine(engine_config(tmp_path / "model", tmp_path / "store"), [greedy("r", prompt, 8)])["r"]
    assert_greedy_follows(model, [Claim(prompt, answer.token_ids, answer.logprobs)], tolerance=1e-4)


@needs_library
@pytest.mark.parametrize(
    ("method", "format_"),
    [
        ("awq-32", "int4"),
        ("awq-gemv", "int4"),
        ("awq-row", "int4"),
        ("gptq-32", "int4"),
        ("gptq-asymmetric", "int4"),
        ("packed-32", "int4"),
        ("packed-row", "int4"),
        ("gptq-order", "none"),  # no tokenizer, by which the change of 8 bits could be measured
        ("gptq-8", "none"),
        ("fp8-blocks", "none"),
    ],
)
def test_auto_keeps_integers_of_4_bits_as_they_are(method: str, format_: str, tmp_path: Path) -> None:
    model = save_packed(method, tmp_path / "model")
    config = engine_config(tmp_path / "model", tmp_path / "store", quantization="auto")
    assert settle_format(config, CPU, torch.float32) == format_
    if format_ == "none":
        return
    prompt = torch.randint(0, 199, (40,)).tolist()
    first, second = (run_engine(config, [greedy("r", prompt, 8)])["r"] for _ in range(2))
    assert (tmp_path / "model" / "lorikeet-int4.matrices").exists()  # which the second one read
    assert first.token_ids == second.token_ids
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
    # The head and the embedding are 8-bit integers, which change this random model by about so much.
    assert abs(expected[first.token_ids[0]].item() - first.logprobs[0].logprob) < 0.2


@needs_library
@pytest.mark.parametrize("family", ["llama-head-dim", "phi3", "glm"])
@pytest.mark.parametrize("method", ["awq-32", "gptq-32", "packed-32", "packed-asymmetric"])
def test_native_matrices_are_the_files_own_numbers(method: str, family: str, tmp_path: Path) -> None:
    """Scales and integers are equal to the last bit; zero points are rounded to float16, symmetric ones exactly."""
    sizes = {key: value for key, value in SIZES.items() if key != "head_dim" or family != "phi3"}
    save_packed(method, tmp_path, family, sizes)
    config = load_model_config(tmp_path)
    native = load_quantized(tmp_path, config, "int4", torch.float32)
    with PackedFiles(tmp_path, config) as files:
        for index, layer in enumerate(native.layers):
            of_layer = {"self_attn.q_proj self_attn.k_proj self_attn.v_proj": layer.qkv, "self_attn.o_proj": layer.o}
            of_layer |= {"mlp.gate_proj mlp.up_proj": layer.gate_up, "mlp.down_proj": layer.down}
            for names, product in of_layer.items():
                assert isinstance(product, NativeLinear)
                found = [files.matrix(*_name_and_shape(config, index, name)) for name in names.split()]
                exact = torch.cat([each.dequantized() for each in found if each is not None])
                lost = (product.weight.dequantized() - exact).abs().max()
                is_symmetric = method in ("gptq-32", "packed-32")
                assert lost <= (0 if is_symmetric else exact.abs().max() / 7 / 136)


def _name_and_shape(config: ModelConfig, index: int, name: str) -> tuple[str, tuple[int, int]]:
    inputs, outputs = config.projection_shapes()[msgspec.convert(name.split(".")[1], Projection)]
    return f"model.layers.{index}.{name}.weight", (outputs, inputs)


@pytest.mark.parametrize("method", ["awq-32", "gptq-order", "fp8-blocks"])
def test_adapters_are_exact_beside_the_base_in_one_batch(method: str, tmp_path: Path) -> None:
    base = save_packed(method, tmp_path / "model")
    base.save_pretrained(tmp_path / "plain")
    adapted = train(tmp_path / "plain", "r4", tmp_path / "adapter")
    key = content_key("t", AdapterStore(tmp_path / "store").add(tmp_path / "adapter"))
    prompt = torch.randint(0, 199, (20,)).tolist()
    requests = [greedy("base", prompt, 8), greedy("adapted", prompt, 8, adapter=key)]
    answers = run_engine(engine_config(tmp_path / "model", tmp_path / "store"), requests)
    for model, name in ((base, "base"), (adapted, "adapted")):
        answer = answers[name]
        assert_greedy_follows(model, [Claim(prompt, answer.token_ids, answer.logprobs)], tolerance=1e-4)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("fp8", "quantization_config must be an object"),
        ({"quant_method": "bitsandbytes"}, "quant_method is bitsandbytes; supported: fp8, awq"),
        ({"quant_method": "mxfp4"}, "quant_method"),
        ({"quant_method": ["fp8"]}, "quant_method"),
        (BLOCKS | {"fmt": "e5m2"}, "fmt is e5m2"),
        (BLOCKS | {"zebra": 1}, "zebra is not known"),
        (BLOCKS | {"weight_block_size": [0, 128]}, "weight_block_size must be two whole numbers"),
        (BLOCKS | {"weight_block_size": 128}, "weight_block_size"),
        (BLOCKS | {"modules_to_convert": ["embed"]}, "modules_to_convert"),
        (GPTQ | {"bits": 3}, "bits is 3"),
        (GPTQ | {"bits": True}, "bits is True"),
        ({key: value for key, value in GPTQ.items() if key != "bits"}, "bits is missing"),
        (GPTQ | {"group_size": 100}, "group_size is 100"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format is marlin"),
        (GPTQ | {"is_marlin_format": True}, "is_marlin_format"),
        (GPTQ | {"pack_dtype": "int16"}, "pack_dtype"),
        (GPTQ | {"dynamic": {"+:.*down.*": {"bits": 8}}}, "dynamic is"),
        ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv_fast"}, "version is gemv_fast"),
        ({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": False}, "zero_point"),
        ({"quant_method": "awq", "bits": 4, "group_size": 32, "backend": "llm-awq"}, "backend"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "quant_algo is NVFP4"),
        ({"quant_method": "modelopt"}, "quant_algo is missing"),
        ({"quant_method": "compressed-tensors"}, "config_groups"),
        (
            compressed_tensors_config({"num_bits": 4, "type": "float"}, "float-quantized"),
            "num_bits is 4; supported for type float",
        ),
        (compressed_tensors_config({"num_bits": 2, "type": "int"}, "pack-quantized"), "weights: num_bits is 2"),
        (compressed_tensors_config({"num_bits": 4, "type": "int"}, "nvfp4-pack-quantized"), "format is nvfp4"),
        (
            compressed_tensors_config({"num_bits": 4, "type": "int", "strategy": "group"}, "pack-quantized"),
            "group_size is None",
        ),
        (
            compressed_tensors_config({"num_bits": 8, "type": "float", "strategy": "block"}, "float-quantized"),
            "block_structure",
        ),
        (
            compressed_tensors_config({"num_bits": 8, "type": "float", "dynamic": True}, "float-quantized"),
            "weights: dynamic",
        ),
        (
            compressed_tensors_config({"num_bits": 8, "type": "float"}, "float-quantized", zebra=1),
            "group_0: zebra is not known",
        ),
        (
            compressed_tensors_config({"num_bits": 8, "type": "float"}, "float-quantized")
            | {"sparsity_config": {"format": "sparse"}},
            "sparsity_config",
        ),
        (
            compressed_tensors_config({}, "float-quantized") | {"config_groups": {"FP8_DYNAMIC": ["Linear"]}},
            "FP8_DYNAMIC must be",
        ),
        (
            compressed_tensors_config({}, "float-quantized") | {"config_groups": {"\x00": {"targets": "\x1b[2J"}}},
            r"config_groups: '\\x00': targets is '\\x1b\[2J', which is not supported",
        ),
    ],
)
def test_what_is_not_read_is_refused_by_key_and_name(change: object, key: str, tmp_path: Path) -> None:
    save_packed("fp8-tensor", tmp_path)
    write_config(tmp_path, change)
    with pytest.raises(UnsupportedModel, match=key):
        load_model_config(tmp_path)


@pytest.mark.parametrize("path", ["config.json", "hf_quant_config.json"])
def test_modelopt_may_have_a_file_of_its_own(path: str, tmp_path: Path) -> None:
    model = save_packed("modelopt", tmp_path)
    if path != "config.json":
        write_config(tmp_path, None)
        said = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
        (tmp_path / path).write_text(json.dumps(said))
    weights = load_weights(tmp_path, load_model_config(tmp_path), torch.float32, CPU)
    x = torch.randn(3, SIZES["intermediate_size"])
    wanted = x @ model.state_dict()["model.layers.1.mlp.down_proj.weight"].T
    torch.testing.assert_close(weights.layers[1].down(x), wanted)
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    write_config(tmp_path, None)
    with pytest.raises(UnsupportedModel, match=r"hf_quant_config\.json: quant_algo is NVFP4"):
        load_model_config(tmp_path)


def test_the_methods_are_described_in_words(tmp_path: Path) -> None:
    said = {
        "awq-32": "AWQ, 4 bits, groups of 32",
        "gptq-order": "GPTQ, 4 bits, groups of 32, act-order",
        "packed-row": "4 bits, a scale a row",
        "float-rows": "FP8, a scale a row",
        "fp8-blocks": "FP8, blocks of 128x128",
        "modelopt": "ModelOpt, FP8, a scale a matrix",
    }
    for method, words in said.items():
        save_packed(method, tmp_path / method)
        assert str(load_model_config(tmp_path / method).quantized) == words


@pytest.mark.parametrize(
    ("method", "name", "change", "words"),
    [
        ("awq-32", "self_attn.q_proj.qzeros", None, r"the checkpoint lacks .*q_proj\.qzeros"),
        (
            "awq-32",
            "mlp.up_proj.scales",
            torch.zeros(7, 160),
            r"up_proj\.scales is \[7, 160\], and should be \[2, 160\]",
        ),
        ("awq-32", "mlp.up_proj.qweight", torch.zeros(64, 20), r"up_proj\.qweight is in F32, and should be in I32"),
        ("awq-32", "mlp.up_proj.zebra", torch.zeros(2), r"zebra"),
        ("gptq-order", "mlp.up_proj.g_idx", torch.full((64,), 9, dtype=torch.int32), r"groups that are not in 0\.\.1"),
        ("gptq-order", "mlp.up_proj.scales", torch.full((2, 160), torch.nan), r"not finite"),
        ("gptq-bias", "mlp.up_proj.bias", torch.ones(160), r"up_proj\.bias"),
        ("fp8-tensor", "mlp.up_proj.weight_scale", None, r"up_proj\.weight is in F8_E4M3, but the checkpoint lacks"),
        ("fp8-blocks", "mlp.up_proj.weight_scale_inv", torch.ones(3, 3), r"should be \[2, 1\]"),
        ("fp8-tensor", "mlp.up_proj.weight", torch.zeros(64).to(torch.float8_e4m3fn), r"which is no matrix"),
        ("packed-32", "mlp.up_proj.weight_shape", torch.tensor([160, 1 << 40]), r"does not hold \[160, 10995"),
        ("packed-32", "mlp.up_proj.weight_shape", torch.tensor([160, -64]), r"does not hold"),
        ("packed-asymmetric", "mlp.up_proj.weight_zero_point", None, r"lacks .*weight_zero_point"),
        ("int8", "mlp.up_proj.weight_scale", torch.ones(2, 2), r"up_proj\.weight_scale is \[2, 2\]"),
    ],
)
def test_a_damaged_checkpoint_is_refused_by_name(
    method: str, name: str, change: torch.Tensor | None, words: str, tmp_path: Path
) -> None:
    save_packed(method, tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors.pop(f"model.layers.0.{name}", None)
    if change is not None:
        tensors[f"model.layers.0.{name}"] = change
    save_file(tensors, path)
    with pytest.raises(UnsupportedModel, match=words):
        load_weights(tmp_path, load_model_config(tmp_path), torch.float32, CPU)


@pytest.mark.parametrize("is_first", [True, False])
def test_formats_that_differ_in_zero_points_alone_are_told_apart_by_them(is_first: bool, tmp_path: Path) -> None:
    """There are two groups of modules, of which only that of v_proj has zero points."""
    model = save_packed("packed-32", tmp_path)
    asymmetric = save_packed("packed-asymmetric", tmp_path / "asymmetric")
    path = tmp_path / "model.safetensors"
    others = load_file(tmp_path / "asymmetric" / "model.safetensors")
    save_file(load_file(path) | {name: each for name, each in others.items() if "v_proj" in name}, path)
    groups = [METHODS[name][0]["config_groups"]["group_0"] for name in ("packed-asymmetric", "packed-32")]
    groups[0] = groups[0] | {"targets": ["re:.*v_proj"]}
    both = {f"group_{number}": group for number, group in enumerate(groups if is_first else reversed(groups))}
    write_config(tmp_path, METHODS["packed-32"][0] | {"config_groups": both})
    with PackedFiles(tmp_path, load_model_config(tmp_path)) as files:
        for kind, source in (("v_proj", asymmetric), ("q_proj", model)):
            name = f"model.layers.0.self_attn.{kind}.weight"
            torch.testing.assert_close(files.get_slice(name)[:], source.state_dict()[name], rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("method", "zeros", "is_refused"),
    [
        ("packed-32", torch.full((20, 2), 0x33333333, dtype=torch.int32), True),
        ("packed-32", torch.full((20, 2), 0x88888888 - (1 << 32), dtype=torch.int32), False),
        ("packed-32", torch.full((160, 2), 3, dtype=torch.int8), True),
        ("packed-32", torch.zeros((160, 2), dtype=torch.int8), False),
        ("int8", torch.full((160, 1), 3, dtype=torch.int8), True),
        ("int8", torch.zeros((160, 1), dtype=torch.int8), False),
        ("float-rows", torch.ones(160, 1), True),
        ("float-rows", torch.zeros(160, 1), False),
    ],
)
def test_zero_points_that_no_format_of_the_config_has_are_refused(
    method: str, zeros: torch.Tensor, is_refused: bool, tmp_path: Path
) -> None:
    """Zero points in the middle of the range are accepted, since they change no number; all others are refused."""
    model = save_packed(method, tmp_path)
    path, name = tmp_path / "model.safetensors", "model.layers.0.mlp.up_proj.weight"
    save_file(load_file(path) | {f"{name}_zero_point": zeros}, path)
    with PackedFiles(tmp_path, load_model_config(tmp_path)) as files:
        if is_refused:
            with pytest.raises(UnsupportedModel, match=r"layers\.0\.mlp\.up_proj\.weight_zero_point has zero points"):
                files.get_slice(name)
        else:
            torch.testing.assert_close(files.get_slice(name)[:], model.state_dict()[name], rtol=1e-6, atol=0)


def test_modelopts_own_file_is_refused_for_experts_and_is_of_the_digest(tmp_path: Path) -> None:
    save_tiny("mixtral", tmp_path)
    without = model_digest(tmp_path)
    digests = {without}
    for algorithm in ("FP8", "FP8_PB_WO"):
        (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": algorithm}}))
        digests.add(model_digest(tmp_path))
        with pytest.raises(UnsupportedModel, match=r"hf_quant_config\.json: .*experts"):
            load_model_config(tmp_path)
    assert len(digests) == 3
    (tmp_path / "hf_quant_config.json").unlink()
    assert model_digest(tmp_path) == without


WRONG: tuple[Any, ...] = (None, 0, -1, 1 << 40, 0.5, "x", "", [], [128], [[1]], {}, {"a": 1}, True, False, 4, 32)


@pytest.mark.parametrize("method", METHODS)
def test_a_mutated_checkpoint_is_read_or_refused_in_words(method: str, full: bool, tmp_path: Path) -> None:
    """No mutant of a config or of the tensors' shapes, types and bytes raises anything else."""
    save_packed(method, tmp_path)
    path, config_path = tmp_path / "model.safetensors", tmp_path / "config.json"
    tensors, raw = load_file(path), json.loads(config_path.read_text())
    names = [name for name in tensors if "_proj" in name]
    rnd = random.Random(method)
    for _ in range(400 if full else 12):
        mutant, config = dict(tensors), json.loads(json.dumps(raw))
        if rnd.random() < 0.5:
            found = config["quantization_config"]
            places = [found, *_group_and_weights(found)]
            place = rnd.choice(places)
            key = rnd.choice([*place, "zebra"])
            place[key] = rnd.choice(WRONG)
            if rnd.random() < 0.2:
                del place[key]
        else:
            name = rnd.choice(names)
            mutant[name] = _mutate(mutant[name], rnd)
            if rnd.random() < 0.2:
                del mutant[name]
        save_file(mutant, path)
        config_path.write_text(json.dumps(config))
        with contextlib.suppress(UnsupportedModel):
            load_weights(tmp_path, load_model_config(tmp_path), torch.float32, CPU)


def _group_and_weights(found: dict[str, Any]) -> list[dict[str, Any]]:
    group = found.get("config_groups", {}).get("group_0")
    return [] if group is None else [group, group["weights"]]


def _mutate(tensor: torch.Tensor, rnd: random.Random) -> torch.Tensor:
    kind = rnd.randrange(5)
    if kind == 0 and tensor.dim():
        return tensor[: rnd.randrange(len(tensor) + 1)].contiguous()
    if kind == 1:
        return torch.cat((tensor, tensor)) if tensor.dim() else tensor.reshape(1)
    if kind == 2:
        return tensor.to(rnd.choice((torch.int32, torch.float32, torch.float16, torch.uint8, torch.int64)))
    if kind == 3:
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).clone()
        for _ in range(3):
            raw[rnd.randrange(len(raw))] = rnd.randrange(256)
        return raw.view(tensor.dtype).reshape(tensor.shape)
    return tensor.T.contiguous() if tensor.dim() == 2 else tensor.reshape(-1, 1)
