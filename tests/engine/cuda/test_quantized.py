"""Quantized checkpoints on the GPU's path: products by the files' own numbers, adapters on inputs as they are.

If kernels are interpreted, half of the checkpoints are served with --full alone; their products run always.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from adapters.ref import content_key
from adapters.store import AdapterStore
from engine.config import EngineConfig, ModelConfig, load_model_config
from engine.cpu.quantization import Requested, choose_format
from engine.cuda.in_order import InOrderAccelerator
from engine.cuda.quantized import PackedLinear, PackedProducts
from engine.cuda.setup import build_cuda
from engine.device import Device
from engine.hardware import SetupError
from engine.models.checkpoint import load_weights
from engine.models.packed.files import PackedFiles
from kernels.gpu.quantized.float8 import Float8Weight, quantize_reference
from kernels.gpu.quantized.int4 import Int4Weight
from kernels.linear import Linear
from tests.engine.harness import engine_config, greedy, run_engine
from tests.engine.lora.trained import train
from tests.engine.models.packing import SIZES, WIDE, save_packed
from tests.engine.models.tiny import save_tiny
from tests.engine.reference import Claim, assert_greedy_follows

GPU = torch.device("cuda")
LONG = {("awq-32", "int4"), ("float-rows", "fp8"), ("fp8-blocks", "w8a8")}
"""Checkpoints that run with --full alone, as pairs of method and format of the product.

Each has a sibling that uses the same kernel.
"""


def build(quantization: str, config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> Device:
    accelerator = InOrderAccelerator()
    if torch.cuda.is_available():
        from engine.cuda.nvidia import CudaAccelerator

        return build_cuda(
            msgspec.structs.replace(config, quantization=quantization), model, dtype, CudaAccelerator(GPU)
        )
    return build_cuda(msgspec.structs.replace(config, quantization=quantization), model, dtype, accelerator)


def build_in_float8(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> Device:
    return build("none", msgspec.structs.replace(config, kv_dtype="fp8"), model, dtype)


def round_inputs(model: torch.nn.Module, stretch: int) -> None:
    """Round the inputs of all linears in a reference model's layers to FP8, and leave everything else."""

    def rounded(module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (x,) = inputs
        flat = x.flatten(0, -2)
        rows = quantize_reference(flat, stretch)
        assert rows.scales is not None
        scales = rows.scales.repeat_interleave(stretch or flat.shape[1], 1)[:, : flat.shape[1]]
        return ((rows.numbers.float() * scales).view(x.shape),)

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and "_proj" in name and "lora_" not in name:
            module.register_forward_pre_hook(rounded)


@pytest.mark.parametrize(
    ("method", "quantization", "stretch", "tolerance"),
    [
        ("awq-32", "int4", None, 1e-4),
        ("gptq-order", "int4", None, 1e-4),
        ("float-rows", "fp8", None, 1e-4),
        ("fp8-blocks", "fp8", None, 1e-4),
        ("float-rows", "w8a8", 0, 0.05),  # a sum that is near the middle of two numbers may be rounded to either
        ("fp8-blocks", "w8a8", 128, 0.05),
    ],
)
def test_base_and_adapter_in_one_batch_equal_their_reference(
    method: str, quantization: str, stretch: int | None, tolerance: float, tmp_path: Path, full: bool
) -> None:
    if (method, quantization) in LONG and not (full or torch.cuda.is_available()):
        pytest.skip("make long-kernels")
    sizes = (WIDE if method == "fp8-blocks" else SIZES) | {"num_hidden_layers": 1}
    base = save_packed(method, tmp_path / "model", sizes=sizes)
    base.save_pretrained(tmp_path / "plain")
    adapted = train(tmp_path / "plain", "r4", tmp_path / "adapter")
    key = content_key("t", AdapterStore(tmp_path / "store").add(tmp_path / "adapter"))
    if stretch is not None:
        round_inputs(base, stretch)
        round_inputs(adapted, stretch)
    prompt = torch.randint(0, 199, (11,)).tolist()
    requests = [greedy("base", prompt, 2), greedy("adapted", prompt, 2, adapter=key)]
    config = engine_config(
        tmp_path / "model", tmp_path / "store", max_batched_tokens=12, max_num_seqs=2, max_adapters=2,
        max_adapter_rank=8, max_model_len=32,
    )  # fmt: skip
    answers = run_engine(config, requests, build_device=lambda *asked: build(quantization, *asked))
    for model, name in ((base, "base"), (adapted, "adapted")):
        answer = answers[name]
        count = len(answer.token_ids) if stretch is None else 1
        claim = Claim(prompt, answer.token_ids[:count], answer.logprobs[:count])
        assert_greedy_follows(model, [claim], tolerance)


@pytest.mark.parametrize(
    ("method", "kind", "num_parts"),
    [
        ("awq-32", Int4Weight, 1),
        ("packed-asymmetric", Int4Weight, 1),
        ("float-rows", Float8Weight, 1),
        ("fp8-tensor", Float8Weight, 1),
        ("fp8-blocks", Float8Weight, 1),
        ("modelopt", Float8Weight, 1),
    ],
)
def test_matrices_of_one_input_are_one_launch(method: str, kind: type, num_parts: int, tmp_path: Path) -> None:
    save_packed(method, tmp_path, sizes=WIDE)
    config = load_model_config(tmp_path)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with PackedFiles(tmp_path, config) as files:
        made = PackedProducts(files, device, rounds_inputs=True)
        ours = load_weights(tmp_path, config, torch.float32, device, make_linear=made.linear)
    theirs = load_weights(tmp_path, config, torch.float32, device)
    x = torch.randn(3, config.hidden_size).to(device)
    for mine, reference in zip(ours.layers, theirs.layers, strict=True):
        for product, exact in ((mine.qkv, reference.qkv), (mine.gate_up, reference.gate_up), (mine.o, reference.o)):
            assert isinstance(product, PackedLinear)
            assert [type(part.weight) for part in product._parts] == [kind] * num_parts
            wanted = exact(x)
            tolerance = 1e-4 if kind is Int4Weight else 0.05
            assert (product(x) - wanted).norm() < tolerance * wanted.norm()
            y = torch.randn_like(wanted)
            assert (product.add(x, y.clone()) - y - wanted).norm() < tolerance * wanted.norm()
    assert isinstance(ours.lm_head, Linear)


def test_what_the_kernels_do_not_multiply_is_dequantized(tmp_path: Path) -> None:
    """Groups of 16 in act-order and integers of 8 bits have no kernel, and are multiplied in the model's dtype."""
    for method in ("gptq-order-asymmetric", "gptq-8"):
        model = save_packed(method, tmp_path / method)
        config = load_model_config(tmp_path / method)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        with PackedFiles(tmp_path / method, config) as files:
            made = PackedProducts(files, device, rounds_inputs=False)
            weights = load_weights(tmp_path / method, config, torch.float32, device, make_linear=made.linear)
        assert isinstance(weights.layers[0].down, Linear)
        x = torch.randn(3, config.intermediate_size).to(device)
        wanted = x @ model.state_dict()["model.layers.0.mlp.down_proj.weight"].to(device).T
        torch.testing.assert_close(weights.layers[0].down(x), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("method", "own"),
    [("awq-32", "int4"), ("gptq-order", "int4"), ("fp8-blocks", "fp8"), ("float-blocks", "fp8"), ("gptq-8", "")],
)
def test_a_gpu_takes_the_files_own_numbers_and_no_others(method: str, own: str, tmp_path: Path) -> None:
    """Inputs are rounded where the checkpoint was made for that, and if it is asked for."""
    save_packed(method, tmp_path)
    quantized = load_model_config(tmp_path).quantized
    asked: Requested
    for asked in ("auto", "none", "int8", "int4", "fp8", "w8a8", "gguf"):
        if asked in ("auto", "none", own) or (asked == "w8a8" and method == "fp8-blocks"):
            found = choose_format(asked, GPU, torch.bfloat16, lambda library: None, quantized=quantized)
            assert found.format == (asked if asked in ("none", "w8a8") else own or "none")
        else:
            with pytest.raises(SetupError, match=r"LORIKEET_QUANTIZATION is .*set it to auto"):
                choose_format(asked, GPU, torch.bfloat16, lambda library: None, quantized=quantized)


def test_a_cache_in_8_bits_holds_more_tokens_and_nearly_the_same_numbers(tmp_path: Path) -> None:
    """The second request finds the first one's beginning in the cache, beside a third one that does not."""
    save_tiny("llama-two-heads", tmp_path)
    prompt = torch.randint(0, 199, (17,)).tolist()
    first, again = [greedy("first", prompt, 4)], [greedy("again", [*prompt, 5], 2), greedy("other", prompt[:3], 2)]
    config = engine_config(
        tmp_path, tmp_path / "store", max_batched_tokens=24, max_num_seqs=2, max_adapters=1, max_adapter_rank=8,
        max_model_len=32, kv_cache_bytes=1 << 16,
    )  # fmt: skip
    ours = run_engine(config, first, {2: again}, build_device=build_in_float8)
    theirs = run_engine(config, first, {2: again})
    assert ours["again"].final.usage.cached_tokens == theirs["again"].final.usage.cached_tokens == 16
    for name, answer in ours.items():
        found, wanted = answer.logprobs[0], theirs[name].logprobs[0]
        assert answer.token_ids[0] in wanted.top_token_ids
        assert found.top_logprobs == pytest.approx(wanted.top_logprobs, abs=0.3)
        assert found.top_logprobs != wanted.top_logprobs
    model = load_model_config(tmp_path)
    wide, narrow = build("none", config, model, torch.float32), build_in_float8(config, model, torch.float32)
    assert (wide.token_bytes, narrow.token_bytes) == (2 * 2 * 1 * 16 * 4, 2 * 2 * 1 * (16 + 4))
    assert narrow.num_blocks == (1 << 16) // (16 * narrow.token_bytes) > 3 * wide.num_blocks


def test_a_cpu_has_no_cache_in_8_bits(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    with pytest.raises(SetupError, match="LORIKEET_KV_DTYPE is fp8, which is for a GPU"):
        run_engine(engine_config(tmp_path, tmp_path / "store", kv_dtype="fp8"), [])
