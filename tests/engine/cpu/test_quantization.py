"""A base model in 8-bit integers: near float32 by the numbers that count, with adapters that stay what they are."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from adapters.demo import DEMO
from adapters.store import AdapterStore
from engine.config import load_model_config
from engine.cpu.quantization import make_linear, quantization
from engine.cpu.setup import build_cpu
from engine.hardware import SetupError
from engine.models.checkpoint import load_weights
from engine.sequence import Chunk, Plan, Sequence
from engine.setup import _fingerprint
from kernels.cpu.library import installed, load
from kernels.cpu.linear import Int8Linear
from tests.demo import QUESTIONS, chat_ids, demo_model_dir
from tests.engine.harness import engine_config, greedy, run_engine
from tests.engine.models.tiny import save_tiny

needs_library = pytest.mark.skipif(installed() is None, reason="the native kernels are not built: run make")
PROSE = Path(__file__).with_name("prose.txt").read_text()
LARGEST_DIVERGENCE_NATS = 0.002
LARGEST_PERPLEXITY_RATIO = 1.005

Quantization = Literal["auto", "none", "int8"]


def log_probabilities(token_ids: list[int], store: Path, asked: Quantization) -> Tensor:
    """[tokens, vocabulary] float32, by the engine's own path over the demo model, in one step."""
    config = engine_config(demo_model_dir(), store, quantization=asked, max_batched_tokens=1024)
    device = build_cpu(config, load_model_config(config.model_dir), torch.float32)
    path = device.make_path(lambda slot: pytest.fail("there is no adapter"))
    sequence = Sequence(greedy("prose", token_ids, 1), token_ids, 0, 0.0, 0)
    sequence.block_table = list(range(1, 2 + len(token_ids) // config.block_size))
    with torch.inference_mode():
        hidden = path.forward(Plan([], [Chunk.of(sequence, 0, len(token_ids))]), range(len(token_ids)))
        return path.logits(hidden).log_softmax(-1)


@needs_library
def test_int8_diverges_from_float32_by_no_more_than_what_is_allowed(tmp_path: Path) -> None:
    token_ids = PreTrainedTokenizerFast.from_pretrained(demo_model_dir())(PROSE)["input_ids"]
    plain, quantized = (log_probabilities(token_ids, tmp_path, asked) for asked in ("none", "int8"))
    divergence = (plain.exp() * (plain - quantized)).sum(-1).mean().item()
    following = torch.tensor(token_ids[1:])[:, None]
    gained = (plain[:-1].gather(1, following) - quantized[:-1].gather(1, following)).mean().item()
    print(f"{len(token_ids)} tokens: divergence {divergence:.5f} nats, perplexity x {math.exp(gained):.4f}")
    assert 0 < divergence <= LARGEST_DIVERGENCE_NATS
    assert math.exp(gained) <= LARGEST_PERPLEXITY_RATIO


@needs_library
def test_adapters_answer_in_their_style(tmp_path: Path, full: bool) -> None:
    store = AdapterStore(tmp_path)
    digests = {demo.name: store.add(demo.path) for demo in DEMO}
    questions = QUESTIONS if full else QUESTIONS[:2]
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
def test_a_request_gets_the_same_answer_alone_and_beside_others(tmp_path: Path) -> None:
    """Products have the same bits. Attention adds in an order that depends on the batch: log-probabilities are near."""
    config = engine_config(demo_model_dir(), tmp_path, quantization="int8")
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
    asked = quantization(config.quantization, cpu)
    ours = load_weights(tmp_path, model, torch.float32, cpu, make_linear=make_linear(asked))
    theirs = load_weights(tmp_path, model, torch.float32, cpu)
    x = torch.randn(3, model.hidden_size)
    for mine, reference in [(ours.lm_head, theirs.lm_head), (ours.layers[1].qkv, theirs.layers[1].qkv)]:
        assert isinstance(mine, Int8Linear)
        assert (mine(x) - reference(x)).norm() < 0.02 * reference(x).norm()
    for layer in ours.layers:
        assert all(isinstance(each, Int8Linear) for each in (layer.qkv, layer.o, layer.gate_up, layer.down))
    answer = run_engine(config, [greedy("one", [1, 2, 3], 4, ignore_eos=True)])["one"]
    assert len(answer.token_ids) == 4


def test_a_gpu_does_not_start_with_int8() -> None:
    assert quantization("auto", torch.device("cuda")) == quantization("none", torch.device("cuda")) == "none"
    with pytest.raises(SetupError, match="LORIKEET_QUANTIZATION"):
        quantization("int8", torch.device("cuda"))


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
