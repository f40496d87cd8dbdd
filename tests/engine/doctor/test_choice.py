"""The doctor names what the engine itself would choose, and advises only what would help."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from engine.config import EngineConfig, UnsupportedModel, model_digest
from engine.cpu.quality import Quality, keep_quality
from engine.doctor.choice import choose
from engine.doctor.report import Choice, Machine
from engine.hardware import SetupError, num_threads, resolve_device, resolve_dtype
from kernels.cpu.library import installed
from kernels.cpu.matrix import FORMATS
from tests.engine.harness import engine_config
from tests.engine.models.general import save_general
from tests.engine.models.packing import save_packed
from tests.engine.models.tiny import save_tiny

QUIET = Machine(
    processor="A Processor",
    features=("avx2",),
    num_processors=2,
    quota=None,
    memory_bytes=16 << 30,
    available_bytes=8 << 30,
    memory_limit_bytes=None,
    load=0.0,
    busy=0.0,
)


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    return msgspec.structs.replace(engine_config(tmp_path, tmp_path), device="cpu", dtype="auto", num_threads=0)


def _advice(choice: Choice) -> str:
    return " ".join(choice.advice)


def test_the_choice_is_the_engines_own(config: EngineConfig) -> None:
    choice = choose(config, QUIET, ())
    device = resolve_device("cpu")
    assert (choice.device, choice.num_threads) == ("cpu", num_threads(0))
    assert getattr(torch, choice.dtype) == resolve_dtype("auto", device)
    assert choice.products == "torch"
    library = installed()
    assert choice.native_paths == (library.paths if library is not None else ())


def test_files_that_hold_matrices_in_few_bits_are_reported(config: EngineConfig) -> None:
    folder = Path(config.model_dir)
    save_packed("fp8-blocks", folder)
    choice = choose(config, QUIET, ())
    assert "The model's files hold matrices in FP8, blocks of 128x128." in choice.reasons
    save_packed("awq-32", folder)
    choice = choose(config, QUIET, ())
    assert "The model's files hold matrices in AWQ, 4 bits, groups of 32." in choice.reasons
    if installed() is None:
        return
    choice = choose(msgspec.structs.replace(config, quantization="auto"), QUIET, ())
    assert choice.products.startswith("int4 ")
    assert choice.reasons[-1].startswith("Matrices stay the 4-bit integers of their files (AWQ, 4 bits")


def test_int8_names_the_path_that_runs(config: EngineConfig) -> None:
    choice = choose(msgspec.structs.replace(config, quantization="int8"), QUIET, ())
    library = installed()
    assert choice.products == ("torch" if library is None else f"int8 {library.paths[-1]}")


def test_slower_instructions_can_be_asked_for(config: EngineConfig) -> None:
    library = installed()
    if library is None:
        return
    plain = msgspec.structs.replace(config, quantization="int8", native_path="plain")
    try:
        choice = choose(plain, QUIET, ())
        assert (choice.products, choice.native_paths) == ("int8 plain", ("plain",))
        assert "LORIKEET_NATIVE_PATH is plain." in choice.reasons
        if "avx_vnni" not in library.all_paths:
            with pytest.raises(SetupError, match="LORIKEET_NATIVE_PATH is avx_vnni, but this processor has plain"):
                choose(msgspec.structs.replace(plain, native_path="avx_vnni"), QUIET, ())
    finally:
        assert choose(config, QUIET, ()).native_paths == library.all_paths


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gguf_file_keeps_its_blocks(dtype: str, config: EngineConfig) -> None:
    (Path(config.model_dir) / "model.gguf").touch()
    choice = choose(msgspec.structs.replace(config, dtype=dtype, quantization="auto"), QUIET, ())
    library = installed()
    assert choice.products == ("torch" if library is None else f"gguf {library.paths[-1]}")
    assert library is None or "blocks of their GGUF file" in choice.reasons[-1]


@pytest.mark.parametrize(("family", "keeps"), [("llama", True), ("phi3", False)])
def test_a_source_that_is_not_prepared_yet_counts_as_it_will_be(family: str, keeps: bool, tmp_path: Path) -> None:
    source = tmp_path / "source" / "some.gguf"
    source.parent.mkdir()
    writer = GGUFWriter(source, family)
    blocks = quantize(np.zeros((32, 32), np.float32), GGMLQuantizationType.Q8_0)
    writer.add_tensor("output.weight", blocks, raw_dtype=GGMLQuantizationType.Q8_0)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    config = msgspec.structs.replace(engine_config(tmp_path / "later", tmp_path), device="cpu", quantization="gguf")
    library = installed()
    for each in (source, source.parent):
        if not keeps:
            with pytest.raises(SetupError, match="not a GGUF file"):
                choose(config, QUIET, (), str(each))
            continue
        assert choose(config, QUIET, (), str(each)).products == (
            "torch" if library is None else f"gguf {library.paths[-1]}"
        )
    (tmp_path / "source" / "other.gguf").touch()
    with pytest.raises(SetupError, match="not a GGUF file"):
        choose(config, QUIET, (), str(source.parent))


def test_int4_is_reported_with_what_was_measured(config: EngineConfig) -> None:
    library = installed()
    if library is None:
        return
    config = msgspec.structs.replace(config, quantization="int4")
    save_tiny("llama", Path(config.model_dir))
    assert choose(config, QUIET, ()).products == f"int4 {library.paths[-1]}"
    digest = model_digest(config.model_dir)
    quality = Quality(
        model_digest=digest, format=FORMATS["int4"], num_tokens=9, divergence_nats=0.01, perplexity_ratio=1.02
    )
    keep_quality(config.model_dir, quality, "int4")
    assert "perplexity +2.00 %" in choose(config, QUIET, ()).reasons[-1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_int8_is_advised_only_where_kernels_are_there(dtype: str, config: EngineConfig) -> None:
    choice = choose(msgspec.structs.replace(config, dtype=dtype), QUIET, ())
    assert ("LORIKEET_QUANTIZATION=int8" in _advice(choice)) == (len(choice.native_paths) > 1)
    assert ("long prompts slower" in _advice(choice)) == (dtype == "bfloat16" and len(choice.native_paths) > 1)


def test_auto_is_reported_with_what_is_known_of_the_model(config: EngineConfig) -> None:
    config = msgspec.structs.replace(config, dtype="float32", quantization="auto")
    library = installed()
    if library is None:
        assert choose(config, QUIET, ()).products == "torch"
        return
    save_tiny("llama", Path(config.model_dir))
    for ratio, products, why in [
        (None, f"int8 {library.paths[-1]}", "if the first start finds the model near enough"),
        (1.001, f"int8 {library.paths[-1]}", "perplexity +0.10 %"),
        (1.01, "torch", "too far"),
    ]:
        if ratio is not None:
            measured = {"divergence_nats": 0.001, "perplexity_ratio": ratio, "num_tokens": 9}
            digest = model_digest(config.model_dir)
            keep_quality(config.model_dir, Quality(model_digest=digest, format=FORMATS["int8"], **measured), "int8")  # type: ignore[arg-type]
        choice = choose(config, QUIET, ())
        assert choice.products == products
        assert why in choice.reasons[-1]


@pytest.mark.parametrize(
    ("changes", "advised"),
    [
        ({"busy": 1.7}, "Other processes use 1.7 of 2 processors"),
        ({"quota": 0.5}, "LORIKEET_NUM_THREADS=1"),
        ({"memory_limit_bytes": 1 << 30}, "LORIKEET_KV_CACHE_BYTES"),
    ],
)
def test_what_slows_an_engine_down_is_named_and_else_nothing(
    changes: dict[str, float], advised: str, config: EngineConfig
) -> None:
    config = msgspec.structs.replace(config, dtype="float32", quantization="int8")
    assert advised in _advice(choose(config, msgspec.structs.replace(QUIET, **changes), ()))
    assert advised not in _advice(choose(config, QUIET, ()))


def test_emulated_bfloat16_is_advised_against(config: EngineConfig) -> None:
    config = msgspec.structs.replace(config, dtype="bfloat16")
    assert "emulates bfloat16" in _advice(choose(config, QUIET, ()))
    capable = msgspec.structs.replace(QUIET, features=("avx2", "avx512_bf16"))
    assert "emulates bfloat16" not in _advice(choose(config, capable, ()))


@pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has a GPU")
def test_a_configuration_that_would_not_start_is_an_error(config: EngineConfig) -> None:
    with pytest.raises(SetupError, match="LORIKEET_DEVICE"):
        choose(msgspec.structs.replace(config, device="cuda"), QUIET, ())


def test_a_model_that_transformers_computes_is_reported(config: EngineConfig, tmp_path: Path) -> None:
    save_general("starcoder2", tmp_path)
    choice = choose(config, QUIET, ())
    assert choice.products == "torch" and "LORIKEET_QUANTIZATION" not in _advice(choice)
    assert "no code of its own for starcoder2: transformers computes it, which is slower" in choice.reasons[-1]
    with pytest.raises(UnsupportedModel, match="starcoder2"):
        choose(msgspec.structs.replace(config, decoder="own"), QUIET, ())
    save_tiny("llama", tmp_path)
    forced = choose(msgspec.structs.replace(config, decoder="transformers"), QUIET, ())
    assert "LORIKEET_DECODER is transformers" in forced.reasons[-1]
