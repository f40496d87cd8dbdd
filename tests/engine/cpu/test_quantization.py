"""A base model in 8-bit integers: near float32 in perplexity and divergence; adapters are not quantized."""

from __future__ import annotations

import logging
import math
import shutil
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from adapters.demo import DEMO
from adapters.store import AdapterStore
from engine.config import load_model_config, model_digest
from engine.cpu.quality import Quality, keep_quality, measure_quality, stored_quality
from engine.cpu.quantization import Requested, choose_format, makers, settle_format
from engine.hardware import SetupError
from engine.models.checkpoint import load_weights
from engine.setup import _fingerprint
from kernels.cpu.library import installed, load
from kernels.cpu.linear import NativeLinear
from kernels.cpu.matrix import FORMATS
from tests.demo import NUM_LAYERS, QUESTIONS, chat_ids, demo_model_dir, first_layers
from tests.engine.harness import engine_config, greedy, run_engine
from tests.engine.models.tiny import save_tiny

needs_library = pytest.mark.skipif(installed() is None, reason="the native kernels are not built: run make")
FLOAT32, CPU = torch.float32, torch.device("cpu")
NEAR = Quality(model_digest="", format=FORMATS["int8"], num_tokens=599, divergence_nats=0.0012, perplexity_ratio=1.003)
FAR = msgspec.structs.replace(NEAR, divergence_nats=0.0021)


def short_demo(folder: Path, num_layers: int) -> Path:
    """Write the first layers of the demo's model and its tokenizer, of which nothing was measured; return the
    folder."""
    first_layers(demo_model_dir(), folder, num_layers)
    for path in demo_model_dir().glob("tokenizer*"):
        shutil.copy(path, folder)
    return folder


@needs_library
def test_the_demo_in_int8_is_near_float32() -> None:
    """The figures are those that the model's first start kept in its folder; without any, this test measures them."""
    config = engine_config(demo_model_dir(), Path("no-store"), quantization="auto", num_threads=0)
    assert settle_format(config, CPU, FLOAT32) == "int8"
    quality = stored_quality(demo_model_dir(), "int8")
    assert quality is not None
    print(quality)
    assert quality.holds
    assert 0 < quality.divergence_nats < 0.002
    assert 0.99 < quality.perplexity_ratio < 1.005
    assert quality.num_tokens == 599


@needs_library
def test_a_model_is_measured_by_its_first_start_alone(tmp_path: Path) -> None:
    """The figures are stored beside the model for all later starts."""
    folder = short_demo(tmp_path / "model", 1)
    config = engine_config(folder, tmp_path / "store", quantization="auto", num_threads=0)
    chosen = settle_format(config, CPU, FLOAT32)
    quality = stored_quality(folder, "int8")
    assert quality is not None and quality.num_tokens == 599
    assert chosen == ("int8" if quality.holds else "none")
    for ratio, later in [(1.0, "int8"), (1.006, "none")]:
        keep_quality(folder, msgspec.structs.replace(quality, perplexity_ratio=ratio), "int8")
        assert settle_format(config, CPU, FLOAT32) == later, "by what was kept: nothing was measured"
    assert not list(folder.glob(".lorikeet-int8*"))


@needs_library
def test_the_demo_in_int4_is_within_its_bound_and_kept_beside_int8(tmp_path: Path, full: bool) -> None:
    """The first layers are within the bound, and at full size all layers."""
    folder = tmp_path / "model"
    folder = Path(shutil.copytree(demo_model_dir(), folder)) if full else short_demo(folder, NUM_LAYERS)
    library = installed()
    assert library is not None
    quality = measure_quality(library, folder, "int4")
    assert quality is not None
    print(quality)
    assert quality.divergence_nats > 0
    assert quality.perplexity_ratio < 1.04
    keep_quality(folder, quality, "int4")
    assert stored_quality(folder, "int4") == quality
    assert stored_quality(folder, "int8") != quality


@needs_library
def test_a_start_with_int4_says_what_it_loses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_tiny("llama", tmp_path)
    config = engine_config(tmp_path, tmp_path / "store", quantization="int4")
    mine = msgspec.structs.replace(NEAR, model_digest=model_digest(tmp_path), format=FORMATS["int4"])
    for kept, level, text in [
        (None, "INFO", "engine.cpu.quality --model-dir"),
        (mine, "INFO", "perplexity +0.30 %"),
        (msgspec.structs.replace(mine, perplexity_ratio=1.05), "WARNING", "perplexity +5.00 %"),
    ]:
        if kept is not None:
            keep_quality(tmp_path, kept, "int4")
        caplog.clear()
        with caplog.at_level(logging.INFO):
            assert settle_format(config, CPU, FLOAT32) == "int4"
        (record,) = caplog.records
        assert (record.levelname, text in record.getMessage()) == (level, True)


@pytest.mark.parametrize(
    ("asked", "dtype", "quality", "format_", "why"),
    [
        ("auto", FLOAT32, NEAR, "int8", "0.0012 nats from float32, perplexity +0.30 %"),
        ("auto", FLOAT32, FAR, "none", "0.0021 nats from float32, perplexity +0.30 %, too far"),
        ("auto", FLOAT32, msgspec.structs.replace(NEAR, perplexity_ratio=1.0051), "none", "too far"),
        ("auto", FLOAT32, msgspec.structs.replace(NEAR, divergence_nats=math.nan), "none", "too far"),
        ("auto", FLOAT32, None, "none", "not known"),
        ("auto", torch.float16, NEAR, "none", "stay in float16"),
        ("none", FLOAT32, NEAR, "none", "LORIKEET_QUANTIZATION is none"),
        ("int8", torch.bfloat16, None, "int8", "LORIKEET_QUANTIZATION is int8"),
        ("int4", torch.float32, None, "int4", "LORIKEET_QUANTIZATION is int4"),
    ],
)
@needs_library
def test_auto_takes_int8_for_float32_where_the_model_stays_near(
    asked: Requested, dtype: torch.dtype, quality: Quality | None, format_: str, why: str
) -> None:
    choice = choose_format(asked, CPU, dtype, lambda library: quality)
    assert (choice.format, why in choice.reason) == (format_, True), choice


@needs_library
def test_auto_leaves_bfloat16_only_for_the_path_that_beats_it() -> None:
    library = installed()
    assert library is not None

    def format_in(path: str) -> str:
        library.use_up_to(path)
        return choose_format("auto", CPU, torch.bfloat16, lambda _: NEAR).format

    try:
        found = {path: format_in(path) for path in library.all_paths}
    finally:
        library.use_up_to(None)
    assert found == {path: "int8" if path == "avx512_vnni" else "none" for path in library.all_paths}


def test_figures_of_another_model_or_of_other_kernels_are_not_used(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    assert stored_quality(tmp_path, "int8") is None
    mine = msgspec.structs.replace(NEAR, model_digest=model_digest(tmp_path))
    for quality, found in [
        (mine, mine),
        (msgspec.structs.replace(mine, model_digest="another"), None),
        (msgspec.structs.replace(mine, format="another"), None),
    ]:
        keep_quality(tmp_path, quality, "int8")
        assert stored_quality(tmp_path, "int8") == found
    (tmp_path / "lorikeet-int8.json").write_text("{")
    assert stored_quality(tmp_path, "int8") is None


@needs_library
@pytest.mark.parametrize("tokenizer", [None, "no tokenizer"])
def test_a_model_without_a_tokenizer_stays_as_it_is(tokenizer: str | None, tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    if tokenizer is not None:
        (tmp_path / "tokenizer.json").write_text(tokenizer)
    assert settle_format(engine_config(tmp_path, tmp_path / "store", quantization="auto"), CPU, FLOAT32) == "none"


def test_a_folder_that_cannot_be_written_to_is_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep_quality(tmp_path / "nowhere", NEAR, "int8")
    (record,) = caplog.records
    assert "the next start measures int8 again" in record.getMessage()


@needs_library
def test_adapters_answer_in_their_style(tmp_path: Path, full: bool) -> None:
    store = AdapterStore(tmp_path)
    digests = {demo.name: store.add(demo.path) for demo in DEMO}
    questions = QUESTIONS if full else QUESTIONS[:1]
    requests = [
        greedy(f"{name}/{number}", chat_ids(question), 18, adapter=digest)
        for name, digest in digests.items()
        for number, question in enumerate(questions)
    ]
    answers = {
        asked: run_engine(engine_config(demo_model_dir(), tmp_path, quantization=asked), requests)
        for asked in ("none", "int8")
    }
    tokenizer = PreTrainedTokenizerFast.from_pretrained(demo_model_dir())
    marks = {"pirate": "Arr", "json": "{", "memo": "MEMO"}
    assert set(digests) == set(marks)
    for name, mark in marks.items():
        for number in range(len(questions)):
            assert mark in tokenizer.decode(answers["int8"][f"{name}/{number}"].token_ids)
    same = sum(answers["int8"][r.request_id].token_ids == answers["none"][r.request_id].token_ids for r in requests)
    print(f"{same} of {len(requests)} answers are the same")
    assert same >= len(requests) / 2


@needs_library
def test_a_request_gets_the_same_answer_alone_and_beside_others(tmp_path: Path, full: bool) -> None:
    """Products have the same bits; attention adds in an order that depends on the batch, so log-probabilities are
    near."""
    model_dir = demo_model_dir() if full else first_layers(demo_model_dir(), tmp_path / "model", NUM_LAYERS)
    config = engine_config(model_dir, tmp_path / "store", quantization="int8")
    requests = [greedy(str(number), chat_ids(question), 6) for number, question in enumerate(QUESTIONS[:2])]
    together = run_engine(config, requests)
    for request in requests:
        alone = run_engine(config, [request])[request.request_id]
        assert alone.token_ids == together[request.request_id].token_ids
        pairs = zip(alone.logprobs, together[request.request_id].logprobs, strict=True)
        assert all(abs(ours.logprob - theirs.logprob) < 1e-3 for ours, theirs in pairs)


def test_seeded_answers_of_another_format_have_another_fingerprint() -> None:
    assert _fingerprint("digest", "cpu", "float32", "none") != _fingerprint("digest", "cpu", "float32", "int8")


@needs_library
def test_every_projection_with_its_biases_is_quantized(tmp_path: Path) -> None:
    save_tiny("qwen2", tmp_path)
    config = engine_config(tmp_path, tmp_path / "store", quantization="int8")
    model, cpu = load_model_config(tmp_path), torch.device("cpu")
    ours = load_weights(tmp_path, model, torch.float32, cpu, make_linear=makers("int8", torch.float32).linear)
    theirs = load_weights(tmp_path, model, torch.float32, cpu)
    x = torch.randn(3, model.hidden_size)
    for mine, reference in [(ours.lm_head, theirs.lm_head), (ours.layers[1].qkv, theirs.layers[1].qkv)]:
        assert isinstance(mine, NativeLinear)
        assert (mine(x) - reference(x)).norm() < 0.02 * reference(x).norm()
    for layer in ours.layers:
        assert all(isinstance(each, NativeLinear) for each in (layer.qkv, layer.o, layer.gate_up, layer.down))
    answer = run_engine(config, [greedy("one", [1, 2, 3], 4, ignore_eos=True)])["one"]
    assert len(answer.token_ids) == 4


def test_a_gpu_does_not_start_with_int8() -> None:
    gpu = torch.device("cuda")
    for asked in ("auto", "none"):
        assert choose_format(asked, gpu, FLOAT32, lambda library: NEAR).format == "none"
    with pytest.raises(SetupError, match="LORIKEET_QUANTIZATION"):
        choose_format("int4", gpu, FLOAT32, lambda library: NEAR)


@pytest.mark.parametrize("content", [None, b"", b"no library"])
def test_a_library_that_does_not_load_is_one_line_in_the_log(
    content: bytes | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "library.so"
    if content is not None:
        path.write_bytes(content)
    with caplog.at_level(logging.INFO):
        assert load(path) is None
    (record,) = caplog.records
    assert "PyTorch's operations compute" in record.getMessage()
