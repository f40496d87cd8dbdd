"""A GGUF file's weights: those that transformers reads, whatever their blocks, and damaged files are refused."""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType
from gguf.quants import quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Gemma3TextConfig, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.config import ModelConfig, UnsupportedModel, load_model_config, model_digest
from engine.config.gguf_file import ARCHITECTURES, NotGguf, hugging_face_name, read_gguf
from engine.config.gguf_file import SIZES as SIZES_IN_FILES
from engine.cpu.quantization import choose_format, makers
from engine.models.checkpoint import load_weights
from engine.models.gguf import GgufWeights
from engine.models.weights import ModelWeights, Product
from engine.prepare.gguf_rotation import UnknownRotation, read_rotation, with_rotation
from engine.prepare.sources import keeps_blocks
from kernels.cpu.library import installed
from kernels.cpu.linear import NativeLinear
from tests.engine.harness import engine_config, greedy, run_engine
from tests.engine.models.tiny import TINY, save_tiny

needs_library = pytest.mark.skipif(installed() is None, reason="the native kernels are not built: run make")
CPU = torch.device("cpu")
SIZES = {
    "hidden_size": 256,
    "head_dim": 32,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}


def write_gguf(family: str, folder: Path, kinds: Callable[[str], str], *, scaled: bool = False) -> Path:
    """Write a tiny random model as a GGUF file beside its config, and return the folder.

    kinds: the format of each matrix, by its name in the file. scaled: the file says that its rotation is scaled.
    """
    plain = folder / "plain"
    model = save_tiny(family, plain, SIZES)
    made = folder / "blocks"
    made.mkdir()
    for name in ("config.json", "generation_config.json"):
        shutil.copyfile(plain / name, made / name)
    state = {name: tensor.float().numpy() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight")
    writer = GGUFWriter(made / "model.gguf", family)
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc"])
    writer.add_uint32("general.alignment", 64)
    for key in SIZES_IN_FILES:
        writer.add_uint32(f"{family}.{key}", 8)  # what counts is the config beside the file
    if scaled:
        writer.add_rope_scaling_factor(8.0)
    writer.data_alignment = 64
    names = {hugging_face_name(name): name for name in gguf_names(int(TINY["num_hidden_layers"]))}
    for name, weights in state.items():
        ours = names[name]
        heads = {"attn_q": 8, "attn_k": 4}.get(ours.split(".")[-2])
        if heads is not None and ARCHITECTURES[family]:  # as llama.cpp's converter does
            weights = weights.reshape(heads, 2, -1, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)
        kind = GGMLQuantizationType[kinds(ours)] if weights.ndim > 1 else GGMLQuantizationType.F32
        if kind in (GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q6_K):
            rng = np.random.default_rng(len(name))
            writer.add_tensor(ours, random_k_blocks(kind.name, *weights.shape, rng), raw_dtype=kind)
        else:
            writer.add_tensor(ours, quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made


def gguf_names(num_layers: int) -> list[str]:
    parts = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm", "attn_k_norm", "ffn_norm",
             "ffn_gate", "ffn_up", "ffn_down")  # fmt: skip
    layers = [f"blk.{i}.{part}.{end}" for i in range(num_layers) for part in parts for end in ("weight", "bias")]
    return ["token_embd.weight", "output_norm.weight", "output.weight", *layers]


def random_k_blocks(name: str, outputs: int, inputs: int, rng: np.random.Generator) -> np.ndarray:
    """Return blocks that the `gguf` package does not make: random ones, with small scales."""
    num_bytes, halves = {"Q4_K": (144, (0, 2)), "Q6_K": (210, (208,))}[name]
    blocks = rng.integers(0, 256, (outputs, inputs // 256, num_bytes), dtype=np.uint8)
    for first in halves:
        numbers = rng.normal(0, 2e-4, (outputs, inputs // 256, 1)).astype(np.float16)
        blocks[..., first : first + 2] = numbers.view(np.uint8)
    return blocks.reshape(outputs, -1)


def mixed(name: str) -> str:
    """Return the block format of a matrix in a mixture like Q4_K_M: some matrices differ from those fused with them."""
    kinds = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "ffn_up": "Q5_0", "token_embd": "Q8_0", "output": "Q4_1"}
    return kinds.get(name.split(".")[-2], "Q4_K")


def products(weights: ModelWeights, config: ModelConfig) -> list[tuple[Product, int]]:
    """Return all matrix products of a model, each with its number of inputs."""
    hidden, attended = config.hidden_size, config.num_heads * config.head_dim
    found: list[tuple[Product, int]] = [(weights.lm_head, hidden)]
    for layer in weights.layers:
        found += [(layer.qkv, hidden), (layer.o, attended), (layer.gate_up, hidden)]
        found.append((layer.down, config.intermediate_size))
    return found


@pytest.mark.parametrize("family", ARCHITECTURES)
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0"])
def test_tensors_are_those_of_the_model_that_the_file_was_made_of(family: str, kind: str, tmp_path: Path) -> None:
    folder = write_gguf(family, tmp_path, lambda name: kind)
    config = load_model_config(folder)
    ours, theirs = (load_weights(each, config, torch.float32, CPU) for each in (folder, tmp_path / "plain"))
    for (mine, width), (reference, _) in zip(products(ours, config), products(theirs, config), strict=True):
        x = torch.randn(3, width)
        assert (mine(x) - reference(x)).norm() < 0.02 * reference(x).norm()


@needs_library
@pytest.mark.parametrize("family", ARCHITECTURES)
@pytest.mark.parametrize("kinds", [mixed, lambda name: "Q4_0", lambda name: "Q4_1", lambda name: "Q8_0"])
def test_products_with_blocks_are_those_with_their_numbers(
    family: str, kinds: Callable[[str], str], tmp_path: Path
) -> None:
    folder = write_gguf(family, tmp_path, kinds)
    config = load_model_config(folder)
    linear, embedding, _ = makers("gguf", torch.float32, folder)
    ours = load_weights(folder, config, torch.float32, CPU, make_linear=linear, make_embedding=embedding)
    theirs = load_weights(folder, config, torch.float32, CPU)
    for (mine, width), (reference, _) in zip(products(ours, config), products(theirs, config), strict=True):
        assert isinstance(mine, NativeLinear)
        x = torch.randn(3, width)
        # Q5_0 becomes 8-bit integers.
        assert (mine(x) - reference(x)).norm() < (0.02 if kinds is mixed else 1e-4) * reference(x).norm()
    tokens = torch.tensor([0, 5, 198])
    assert torch.allclose(ours.embed(tokens), theirs.embed(tokens))


@needs_library
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_of_a_gguf_file_keeps_its_blocks_by_itself(dtype: str, tmp_path: Path) -> None:
    folder = write_gguf("llama", tmp_path, mixed)
    answers = {
        asked: run_engine(
            engine_config(folder, tmp_path / "store", quantization=asked, dtype=dtype),
            [greedy("one", [1, 2, 3, 4, 5], 6, ignore_eos=True)],
        )["one"]
        for asked in ("auto", "gguf", "none", "int4")
    }
    assert answers["auto"].token_ids == answers["gguf"].token_ids
    assert all(len(answer.token_ids) == 6 for answer in answers.values())
    for ours, theirs in zip(answers["auto"].logprobs[:1], answers["none"].logprobs[:1], strict=True):
        assert abs(ours.logprob - theirs.logprob) < 0.1


@needs_library
def test_auto_keeps_blocks_whatever_the_processor_multiplies() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert choose_format("auto", CPU, dtype, lambda library: None, has_blocks=True).format == "gguf"
        assert choose_format("none", CPU, dtype, lambda library: None, has_blocks=True).format == "none"
    assert (
        choose_format("auto", torch.device("cuda"), torch.float32, lambda library: None, has_blocks=True).format
        == "none"
    )


def test_the_digest_depends_on_the_file(tmp_path: Path) -> None:
    folder = write_gguf("llama", tmp_path, mixed)
    before = model_digest(folder)
    with (folder / "model.gguf").open("ab") as file:
        file.write(b"\0")
    assert model_digest(folder) != before


def test_a_tensor_that_the_config_does_not_fit_is_named(tmp_path: Path) -> None:
    folder = write_gguf("llama", tmp_path, mixed)
    config = load_model_config(folder)
    weights = GgufWeights(folder / "model.gguf", config)
    with pytest.raises(UnsupportedModel, match=r"q_proj\.weight is \[256, 256\], the config asks for \[1, 256\]"):
        weights.blocks("model.layers.0.self_attn.q_proj.weight", (1, 256))
    with pytest.raises(UnsupportedModel, match=r"lacks model\.layers\.9"):
        weights.blocks("model.layers.9.self_attn.q_proj.weight", (1, 256))


@pytest.mark.parametrize(
    ("name", "shape", "kind"),
    [
        ("attn_q.weight", (16, 2, 256), "F32"),
        ("ffn_up.weight", (16, 2, 256), "F32"),
        ("attn_q.weight", (24, 256), "F32"),
        ("attn_k.weight", (12, 256), "Q8_0"),
        ("attn_k.bias", (12,), "F32"),
        ("attn_k.bias", (32,), "Q8_0"),
    ],
)
def test_a_shape_that_cannot_be_put_in_order_is_named(
    name: str, shape: tuple[int, ...], kind: str, tmp_path: Path
) -> None:
    config = load_model_config(write_gguf("llama", tmp_path, mixed))
    writer = GGUFWriter(tmp_path / "other.gguf", "llama")
    number = GGMLQuantizationType[kind]
    writer.add_tensor(f"blk.0.{name}", quantize(np.zeros(shape, np.float32), number), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    weights = GgufWeights(tmp_path / "other.gguf", config)
    (ours,) = weights.keys()
    with pytest.raises(UnsupportedModel, match=re.escape(f"{ours} is {list(shape)}")):
        weights.get_tensor(ours)


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return (write_gguf("qwen3", tmp_path_factory.mktemp("gguf"), mixed) / "model.gguf").read_bytes()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_read_within_its_bounds(
    data: st.DataObject, content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(st.integers(0, 6000))] = data.draw(st.integers(0, 255))
    length = data.draw(st.integers(0, len(damaged)))
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(damaged[:length] if data.draw(st.booleans()) else damaged)
    try:
        head = read_gguf(path)
    except NotGguf:
        return
    size = path.stat().st_size
    assert all(tensor.offset + tensor.num_bytes <= size for tensor in head.tensors.values())


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q5_0", "BF16", "F32"])
def test_a_file_keeps_its_blocks_where_the_kernels_multiply_by_them(kind: str, tmp_path: Path) -> None:
    file = write_gguf("llama", tmp_path, lambda name: kind) / "model.gguf"
    assert keeps_blocks(file) is (kind in ("Q4_0", "Q4_1", "Q8_0"))


def rotation_of(folder: Path, add: Callable[[GGUFWriter], None], architecture: str = "llama") -> dict[str, Any]:
    """Return the rotary settings that a file gives a config without any. add: adds keys to the file."""
    writer = GGUFWriter(folder / "model.gguf", architecture)
    add(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    raw = {"hidden_size": 64, "num_attention_heads": 2, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}
    rope: dict[str, Any] = with_rotation(raw, read_rotation(folder / "model.gguf"))["rope_parameters"]
    return rope


@pytest.mark.parametrize(("factor", "original"), [(8.0, 8192), (32.0, 8192), (4.0, 4096)])
def test_the_factors_of_a_file_of_llama_3_become_keys_of_its_config(
    factor: float, original: int, tmp_path: Path
) -> None:
    """The factors are what transformers makes of the keys."""
    config = LlamaConfig(
        head_dim=64,
        max_position_embeddings=131072,
        rope_parameters={"rope_theta": 5e5, "rope_type": "default"},
    )
    plain = LlamaRotaryEmbedding(config).inv_freq
    rope = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }
    config.rope_parameters = rope
    factors = (plain / LlamaRotaryEmbedding(config).inv_freq).numpy()
    assert rotation_of(tmp_path, lambda writer: writer.add_tensor("rope_freqs.weight", factors)) == rope


def test_other_scalings_of_a_file_become_keys_of_its_config(tmp_path: Path) -> None:
    def linear(writer: GGUFWriter) -> None:
        writer.add_rope_scaling_factor(8.0)

    def yarn(writer: GGUFWriter) -> None:
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(4096)

    def longrope(writer: GGUFWriter) -> None:
        writer.add_rope_dimension_count(24)
        writer.add_rope_scaling_orig_ctx_len(4096)
        for name in ("short", "long"):
            writer.add_tensor(f"rope_factors_{name}.weight", np.full(12, len(name), dtype=np.float32))

    base = {"rope_theta": 5e5}
    assert rotation_of(tmp_path, linear) == base | {"rope_type": "linear", "factor": 8.0}
    assert rotation_of(tmp_path, yarn) == base | {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096
    }  # fmt: skip
    assert rotation_of(tmp_path, longrope, "phi3") == base | {
        "rope_type": "longrope", "short_factor": [5.0] * 12, "long_factor": [4.0] * 12,
        "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75,
    }  # fmt: skip


def test_a_scaling_goes_to_layers_that_see_everything_where_others_have_windows(tmp_path: Path) -> None:
    raw = Gemma3TextConfig(**TINY | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]})
    writer = GGUFWriter(tmp_path / "model.gguf", "gemma3")
    writer.add_rope_scaling_type(RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(8.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    plain = raw.to_dict()
    scaled = with_rotation(plain, read_rotation(tmp_path / "model.gguf"))
    (tmp_path / "config.json").write_text(json.dumps(scaled))
    (tmp_path / "model.gguf").unlink()
    ours = load_model_config(tmp_path)
    thetas = [plain["rope_parameters"][kind]["rope_theta"] for kind in ("full_attention", "sliding_attention")]
    assert ours.window_rope is not None
    assert (ours.rope.kind, ours.rope.factor, ours.rope.theta) == ("linear", 8.0, thetas[0])
    assert (ours.window_rope.kind, ours.window_rope.theta) == ("default", thetas[1])


@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3", "longrope", "none"])
@pytest.mark.parametrize("key", ["yarn_log_multiplier", "yarn_attn_factor", "yarn_ext_factor", "alpha", "attn_factor"])
def test_keys_that_a_scaling_does_not_have_are_refused_by_name(kind: str, key: str, tmp_path: Path) -> None:
    def add(writer: GGUFWriter) -> None:
        writer.add_bool("llama.rope.scaling.finetuned", True)
        writer.add_rope_scaling_orig_ctx_len(4096)
        writer.add_float32(f"llama.rope.scaling.{key}", 0.5)
        if kind in ("linear", "yarn"):
            writer.add_rope_scaling_type(RopeScalingType(kind))
            writer.add_rope_scaling_factor(4.0)
        for end in {"llama3": ("rope_freqs",), "longrope": ("rope_factors_short", "rope_factors_long")}.get(kind, ()):
            writer.add_tensor(f"{end}.weight", np.ones(32, dtype=np.float32))

    if (kind, key) == ("longrope", "attn_factor"):
        assert rotation_of(tmp_path, add)["attention_factor"] == 0.5
        return
    with pytest.raises(UnknownRotation, match=rf"rope\.scaling\.{key}"):
        rotation_of(tmp_path, add)


def test_factors_beside_another_scaling_are_refused(tmp_path: Path) -> None:
    def add(writer: GGUFWriter) -> None:
        writer.add_rope_scaling_factor(4.0)
        writer.add_tensor("rope_freqs.weight", np.ones(32, dtype=np.float32))

    with pytest.raises(UnknownRotation, match="by factors and by 'linear' at once"):
        rotation_of(tmp_path, add)


@pytest.mark.parametrize("factors", [np.array([1.0, 3.0, 2.0, 4.0]), np.array([1.0, -1.0]), np.array([1.0, np.nan])])
def test_factors_that_no_config_says_are_refused(factors: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(UnknownRotation, match="rope_freqs"):
        rotation_of(tmp_path, lambda writer: writer.add_tensor("rope_freqs.weight", factors.astype(np.float32)))


def test_a_file_that_scales_its_rotation_keeps_its_blocks(tmp_path: Path) -> None:
    file = write_gguf("llama", tmp_path, lambda name: "Q8_0", scaled=True) / "model.gguf"
    assert read_gguf(file).scales_rotation
    assert keeps_blocks(file)


def test_arrays_of_arrays_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "deep.gguf"
    array = struct.pack("<I", 9)
    file.write_bytes(
        b"GGUF"
        + struct.pack("<IQQ", 3, 0, 1)
        + struct.pack("<Q", 1)
        + b"a"
        + array
        + 3000 * (array + struct.pack("<Q", 1))
    )
    with pytest.raises(NotGguf, match="an array of arrays"):
        read_gguf(file)


def test_an_empty_file_is_refused_as_no_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(NotGguf, match=r"empty\.gguf"):
        read_gguf(tmp_path / "empty.gguf")
