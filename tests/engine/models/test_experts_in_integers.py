"""Mixtures of experts as small integers on a CPU: the model of the rounded weights, with adapters as they are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.config import UnsupportedModel, load_model_config
from engine.cpu.kept import matrices_file
from engine.cpu.matrices import matrices_bytes
from engine.cpu.quality import Quality, keep_quality, measure_quality
from engine.cpu.quantization import load_quantized, why_unquantized
from engine.models.weights import ExpertWeights, ModelWeights
from engine.setup import with_settled_quantization
from kernels.cpu.experts import NativeGrouped
from kernels.cpu.library import installed
from kernels.cpu.matrix import FORMATS, Format, dequantized_weight
from tests.engine.harness import engine_config, run_engine
from tests.engine.models.test_experts import CHUNK, LENGTHS, ExpertBase
from tests.engine.models.tiny import save_tiny
from tests.engine.reference import Claim, assert_greedy_follows
from tests.gateway.model_folder import make_model_folder

pytestmark = [
    pytest.mark.skipif(installed() is None, reason="the native kernels are not built: run make"),
    # PEFT looks for the keys of patterns among modules alone, when it warns.
    pytest.mark.filterwarnings("ignore:The following .* keys did not match:RuntimeWarning"),
]
_HEADS, _LINEARS = re.compile(r"(embed_tokens|lm_head)\.weight"), re.compile(r"[qkvo]_proj\.(base_layer\.)?weight")
_EXPERTS = re.compile(r"experts\..*(gate_up_proj|down_proj)$")


def round_weights(model: torch.nn.Module, kind: Format, *, is_transposed: bool) -> None:
    """Replace the matrices of a transformers model by the numbers that they represent after rounding to integers.

    is_transposed: experts lie as [in, out], as gpt-oss has them.
    """
    for name, parameter in model.named_parameters():
        weight = parameter.data
        if _HEADS.search(name):
            parameter.data = dequantized_weight(weight, "int8")
        elif _LINEARS.search(name):
            parameter.data = dequantized_weight(weight, kind)
        elif _EXPERTS.search(name) and "lora_" not in name:
            parameter.data = torch.stack([_round_weight(each, kind, is_transposed) for each in weight])


def _round_weight(weight: Tensor, kind: Format, is_transposed: bool) -> Tensor:
    rounded = dequantized_weight((weight.T if is_transposed else weight).contiguous(), kind)
    return rounded.T.contiguous() if is_transposed else rounded


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "gpt_oss", "granitemoe"])
def test_base_and_adapters_follow_the_model_of_rounded_weights(
    family: str, kind: Format, tmp_path: Path, full: bool
) -> None:
    """Answers differ by no more than the rounding of inputs to 16 bits explains. Routers, adapters and biases are not
    rounded.

    Each format has two families, and at full size all.
    """
    if not full and (kind == "int4") != (family in ("mixtral", "gpt_oss")):
        pytest.skip("the other format has this family")
    base = ExpertBase(tmp_path, family)
    requests = base.requests(LENGTHS, 12)
    config = base.config(max_batched_tokens=CHUNK, quantization=kind)
    answers = run_engine(config, requests[::2], {3: requests[1::4], 5: requests[3::4]})
    for model in base.models.values():
        round_weights(model, kind, is_transposed=family == "gpt_oss")
    for request in requests:
        answer = answers[request.request_id]
        assert answer.final.finish_reason == "length", answer.final.error
        claim = Claim(request.prompt_token_ids, answer.token_ids, answer.logprobs)
        assert_greedy_follows(base.models[request.request_id.partition("/")[0]], [claim], 2e-3)


def numbers(weights: ModelWeights) -> list[Tensor]:
    found = []
    for layer in weights.layers:
        assert isinstance(layer.feed_forward, ExpertWeights)
        for product in (layer.feed_forward.gate_up, layer.feed_forward.down):
            assert isinstance(product, NativeGrouped)
            found += [matrix.dequantized() for matrix in product.matrices]
    return found


@pytest.mark.parametrize("name", ["qwen3-moe", "gpt-oss"])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_later_start_reads_what_the_first_one_made(name: str, kind: Format, tmp_path: Path) -> None:
    """One tensor has all experts of a layer of gpt-oss, which the later start does not ask for."""
    save_tiny(name, tmp_path)
    config = load_model_config(tmp_path)
    first = numbers(load_quantized(tmp_path, config, kind, torch.float32))
    path = matrices_file(tmp_path, kind)
    written = path.stat()
    again = numbers(load_quantized(tmp_path, config, kind, torch.float32))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (written.st_mtime_ns, written.st_ino)
    assert 0.9 < matrices_bytes(config, kind) / written.st_size < 1.1


def test_a_number_that_is_not_finite_is_named_by_its_expert(tmp_path: Path) -> None:
    save_tiny("qwen3-moe", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.1.mlp.experts.5.down_proj.weight"][3, 4] = torch.inf
    save_file(tensors, path)
    with pytest.raises(
        UnsupportedModel, match=r"layers\.1\.mlp\.experts\.5\.down_proj\.weight has numbers .*not finite"
    ):
        load_quantized(tmp_path, load_model_config(tmp_path), "int8", torch.float32)


@pytest.mark.parametrize("name", ["mixtral", "gpt-oss"])
def test_auto_takes_integers_for_experts_that_stay_near(name: str, tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "model")
    save_tiny(name, folder, {"vocab_size": json.loads((folder / "config.json").read_text())["vocab_size"]})
    library = installed()
    assert library is not None
    quality = measure_quality(library, folder, "int8")
    assert quality is not None
    assert 0 < quality.divergence_nats < 0.5
    assert quality.num_tokens > 100
    asked = engine_config(folder, tmp_path / "store", quantization="auto")
    fields = {"model_digest": quality.model_digest, "format": quality.format, "num_tokens": quality.num_tokens}
    for ratio, chosen in ((1.0, "int8"), (1.01, "none")):
        keep_quality(folder, Quality(**fields, divergence_nats=0.001, perplexity_ratio=ratio), "int8")
        assert with_settled_quantization(asked).quantization == chosen


def test_a_gpu_takes_experts_as_they_are(tmp_path: Path) -> None:
    save_tiny("mixtral", tmp_path)
    model = load_model_config(tmp_path)
    assert why_unquantized(model, torch.device("cpu")) == ""
    assert why_unquantized(model, torch.device("cuda")) == "a GPU computes this model's experts"
