"""The numbers that the benchmark on a GPU compares with are right, and the benchmark runs without a GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from engine.bench.drive import Trace
from engine.bench.measures import Window, adapters_by_step
from engine.bench.shape.floors import (
    adapter_elements,
    decode_work,
    matrix_elements,
    prefill_work,
    share_left_by_adapters,
)
from engine.bench.shape.sizes import SHAPES, Sizes
from engine.bench.shape.weights import RandomAdapters, RandomTensors
from engine.bench.workload import Workload
from engine.config import PROJECTIONS
from kernels.bench.floors import Rates, floor
from tests.patience import PATIENCE_S

LLAMA = SHAPES["llama-3.1-8b"]
TINY = SHAPES["tiny"]
H100 = Rates(bytes_per_s=3.35e12, operations_per_s=989e12)


def test_the_known_numbers_of_an_8b_model() -> None:
    """The model has 15 GB of weights in bf16, 84 MB for an adapter of rank 16, and 131 kB of cache for a token."""
    assert decode_work(LLAMA, [], [], 2).num_bytes == pytest.approx(15.0e9, rel=0.005)
    assert 2 * adapter_elements(LLAMA, 16) == pytest.approx(84e6, rel=0.005)
    with_token = decode_work(LLAMA, [1], [], 2).num_bytes
    assert with_token - decode_work(LLAMA, [], [], 2).num_bytes == 131072


def test_a_decode_step_costs_its_bytes_and_a_prefill_its_products() -> None:
    base = floor(decode_work(LLAMA, [1024] * 64, [], 2), H100)
    adapters = floor(decode_work(LLAMA, [1024] * 64, [16] * 32, 2), H100)
    assert base.is_memory and adapters.is_memory
    assert adapters.seconds - base.seconds == pytest.approx(32 * 84e6 / 3.35e12, rel=0.005)
    prompts = prefill_work(LLAMA, [1024] * 8, [], 2)
    assert not floor(prompts, H100).is_memory
    assert prompts.num_operations == pytest.approx(2 * 8192 * 6.98e9, rel=0.05)


def test_work_by_counting_a_tiny_model_by_hand() -> None:
    shapes = [TINY.projection_shape(name) for name in PROJECTIONS]
    matrices = 2 * sum(width * height for width, height in shapes)
    assert matrix_elements(TINY) == matrices
    adapter = 2 * 3 * sum(width + height for width, height in shapes)
    assert adapter_elements(TINY, 3) == adapter
    head, cached = 128 * 32, 2 * 2 * 1 * 16
    work = decode_work(TINY, [5, 7], [3], 4)
    assert work == ((matrices + head + 12 * cached + adapter) * 4, 2 * 2 * (matrices + head))
    work = prefill_work(TINY, [2, 3], [3, 3], 4)
    pairs = (1 + 2) + (1 + 2 + 3)
    operations = 2 * 5 * (matrices + adapter) + 4 * pairs * 2 * 2 * 16 + 2 * 2 * head
    assert work == ((matrices + head + 2 * adapter) * 4, operations)


def test_random_weights_and_adapters_are_the_same_whenever_they_are_asked_for() -> None:
    tensors = RandomTensors(torch.float32, torch.device("cpu"))
    assert torch.equal(tensors.take("a.weight", (4, 6)), tensors.take("a.weight", (4, 6)))
    assert not torch.equal(tensors.take("a.weight", (4, 6)), tensors.take("b.weight", (4, 6)))
    adapters = RandomAdapters(TINY, torch.float32, [3], pin=False)
    assert adapters.load("1").weights is adapters.load("33").weights
    assert not torch.equal(adapters.load("1").weights, adapters.load("2").weights)
    assert adapters.load("1").num_bytes == 4 * adapter_elements(TINY, 3)


def test_the_scenarios_fit_the_memory_of_their_gpu() -> None:
    from engine.bench.shape.rig import rig_config

    config = rig_config(LLAMA, Sizes(), torch.bfloat16)
    weights = 2 * (matrix_elements(LLAMA) + 2 * LLAMA.vocab_size * LLAMA.hidden_size)
    assert config.kv_cache_bytes is not None and config.adapter_device_bytes is not None
    assert weights + config.kv_cache_bytes + config.adapter_device_bytes < 60e9


def test_a_step_has_the_adapters_of_the_tokens_that_came_with_it() -> None:
    workload = Workload(100)

    def trace(adapter: str, *arrived_s: float) -> Trace:
        return Trace(workload.request([1], 9, adapter=adapter), 0.0, arrived_s=list(arrived_s))

    traces = [trace("a", 1, 2, 3), trace("b", 2, 3), trace("a", 3), trace("", 3, 4), trace("c", 9)]
    assert adapters_by_step(traces, Window(1, 9)) == [{"a"}, {"a", "b"}, {"a", "b"}, set()]


def test_reading_more_adapters_leaves_their_bytes_share_of_the_throughput() -> None:
    """Reading 40 adapters of 84 MB at 3.35 TB/s takes a millisecond."""
    assert share_left_by_adapters(LLAMA, 0.009, 40, 16, 2, H100) == pytest.approx(0.9, rel=0.001)
    assert share_left_by_adapters(LLAMA, 0.009, 0, 16, 2, H100) == 1


BLOCKED = ("zmq", "llguidance", "safetensors", "transformers", "peft", "asyncpg", "litestar")


@pytest.mark.skipif(torch.cuda.is_available(), reason="what runs where there is no GPU")
def test_a_dry_run_does_everything_claims_nothing_and_needs_few_packages() -> None:
    program = (
        "import os, sys\n"
        f"sys.modules.update(dict.fromkeys({BLOCKED!r}))\n"  # an import of one of these fails
        "os.environ['TRITON_INTERPRET'] = '1'\n"  # before Triton is imported
        "from tests.interpreter import overflow_unchecked, prepare_once\n"
        "prepare_once()\n"
        "from engine.bench.__main__ import main\n"
        "with overflow_unchecked():\n"
        "    sys.exit(main(['--shape', 'llama-3.1-8b', '--random-weights', '--dry']))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    checks = [line for line in lines if line.startswith("logits") or "logits, adapter" in line]
    assert len(checks) == 3 and all(line.endswith("True") for line in checks)
    cases = ("decode, base", "decode, each token awaited", "decode, adapters loaded and unused", "decode, 2 adapters")
    for case in (
        *cases,
        "prefill, 2 adapters",
        "decode beside 3 of a prompt, base",
        "decode beside 3 of a prompt, 2 adapters",
    ):
        (line,) = (line for line in lines if line.startswith(case))
        assert not any(character.isdigit() for character in line.removeprefix(case))
    assert any(line.startswith("3 registered") for line in lines)
    loads = {line.split("  ")[0]: line.split()[-1] for line in lines if line.startswith("short requests")}
    assert loads == {"short requests, resident": "0", "short requests, loaded": "1"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="what runs where there is no GPU")
def test_without_a_gpu_there_are_no_figures(capsys: pytest.CaptureFixture[str]) -> None:
    from engine.bench.__main__ import main

    assert main(["--shape", "tiny", "--random-weights"]) == 2
    assert "--dry" in capsys.readouterr().err
