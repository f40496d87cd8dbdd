"""Every benchmark runs, at a tiny size, and its figures other than times are true. No test promises a time."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.bench import (
    band,
    fairness,
    llamacpp,
    overview,
    prefix,
    quantization,
    slots,
    speculative,
    structured,
    throughput,
)
from engine.bench.bounds import experts
from engine.bench.drive import BenchEngine, Source, run_closed
from engine.bench.measures import auc
from engine.bench.pairs import Bound, Pair, ratio_row, value_row
from engine.bench.report import Report, Row
from engine.bench.scenarios import SCENARIOS, main
from engine.bench.workload import Workload
from engine.bench.yardstick import TransformersProcess
from engine.config import EngineConfig
from engine.protocol import SamplingParams
from engine.setup import with_settled_quantization
from tests.demo import demo_model_dir
from tests.engine.harness import engine_config
from tests.gateway.model_folder import make_model_folder
from tests.patience import TRIES


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny random model with a tokenizer, whose vocabulary a grammar needs."""
    folder = make_model_folder(tmp_path_factory.mktemp("bench") / "model")
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig.from_pretrained(folder)).save_pretrained(folder)
    return folder


@pytest.fixture
def config(model_dir: Path, tmp_path: Path) -> EngineConfig:
    return engine_config(model_dir, tmp_path / "store")


@pytest.fixture(scope="module")
def yardstick(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TransformersProcess]:
    """Give the yardstick that two benchmarks share, since its process takes long to start."""
    with TransformersProcess(engine_config(model_dir, tmp_path_factory.mktemp("yardstick"))) as yardstick:
        yield yardstick


def figures(rows: list[Row]) -> dict[str, float]:
    return {row["figure"]: row["value"] for row in rows if "figure" in row}


def test_throughput_stands_beside_its_yardstick(config: EngineConfig, yardstick: TransformersProcess) -> None:
    options = throughput.Options(
        streams=(1, 3), adapters=(0, 2), rank=2, prompt_tokens=9, shared_prefix=16, new_tokens=5, repeat=1
    )
    rows = list(throughput.measure(config, options, yardstick))
    assert [(row["streams"], row["adapters"]) for row in rows] == [(1, 0), (1, 2), (3, 0), (3, 2)]
    assert all(row["tokens_per_s"] > 0 and row["transformers_base"] > 0 for row in rows)


def test_many_adapters_pass_through_few_slots(config: EngineConfig) -> None:
    options = slots.Options(
        distributions=("uniform",), adapters=6, slots=3, resident=2, streams=4, tight_slots=1, tight_streams=3, rank=2
    )
    rows = list(slots.measure(config, msgspec.structs.replace(options, prompt_tokens=8, new_tokens=6)))
    few, many, all_resident, tight = (row for row in rows if "case" in row)
    assert few["loads"] == all_resident["loads"] == 0 < min(many["loads"], tight["loads"])
    assert few["wait_max_ms"] == all_resident["wait_max_ms"] == 0 < tight["wait_max_ms"]


def test_the_overview_has_a_row_for_every_load(config: EngineConfig, yardstick: TransformersProcess) -> None:
    options = overview.Options(
        streams=(1, 3), adapters=(0, 2), repeat=1, new_tokens=6, long_prompt=96, seconds=0.3, requests_per_stream=2
    )
    every_row = list(overview.measure(config, options, yardstick))
    rows = [row for row in every_row if "prompt" in row]
    assert [(row["streams"], row["adapters"], row["popularity"]) for row in rows] == [
        *((1, 0, "turns"), (1, 2, "turns"), (3, 0, "turns"), (3, 2, "turns")),
        *((3, 2, "identical"), (3, 2, "uniform"), (3, 2, "zipf")),
        *((3, 0, "turns"), (3, 2, "turns"), (3, 0, "turns"), (3, 2, "turns")),
    ]
    assert [row["case"] for row in rows[7:]] == ["long prompts"] * 2 + ["shared prefix"] * 2
    assert {"more than slots", "noisy: quiet"} <= {row.get("case") for row in every_row}
    assert all(row["tokens_per_s"] > 0 and row["ratio"] > 0 for row in rows)


def test_a_prefix_is_found_by_its_tenant_alone(config: EngineConfig) -> None:
    options = prefix.Options(system_tokens=64, user_tokens=8, repeat=3, pairs=4, probe_tokens=40)
    rows = list(prefix.measure(config, options))
    cached = {(row["case"], row.get("sent_before")): row["cached_tokens"] for row in rows if "case" in row}
    assert cached["second", None] == 3 * 64
    assert cached["the victim", True] == 4 * 32
    assert sum(cached.values()) == 3 * 64 + 4 * 32
    assert figures(rows)["tokens that the engine counts as found across tenants"] == 0


def test_fairness_sees_both_tenants_served(config: EngineConfig) -> None:
    options = fairness.Options(max_num_seqs=2, streams=2, factor=5, seconds=0.6, margin=0.1, new_tokens=4)
    rows = list(fairness.measure(config, options))
    assert [row["case"] for row in rows if "case" in row] == [
        *("equal: quiet", "equal: other", "noisy: quiet", "noisy: other", "weights: heavy", "weights: light")
    ]
    assert all(row["service_per_s"] > 0 for row in rows if "case" in row)


def test_every_bound_of_the_batch_band_is_measured(config: EngineConfig) -> None:
    options = band.Options(streams=1, max_num_seqs=2, seconds=0.5, margin=0.1, repeat=1, prompt_tokens=8, new_tokens=4)
    for _ in range(TRIES):  # a run of half a second on a machine that is busy elsewhere may make no token
        rows = list(band.measure(config, options))
        runs = {row["run"]: row["tokens/s"] for row in rows if "run" in row}
        if min(runs.values()) > 0:
            break
    assert list(runs) == ["one", "alone", "beside", "best", "batch", "bursts"] and min(runs.values()) > 0
    assert {row["line"] for row in rows if "verdict" in row} == {"alone", "beside", "bursts"}
    assert {row["verdict"] for row in rows if "verdict" in row} <= {"PASS", "FAIL"}


@pytest.mark.parametrize("asked", ["auto", "none"])
def test_the_first_line_tells_how_matrices_are_multiplied(
    model_dir: Path, asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With `auto` the line names the format that an engine would start with: integers, or the weights' own."""
    sizes = [
        "--streams",
        "1",
        "--max-num-seqs",
        "2",
        "--seconds",
        "0.3",
        "--margin",
        "0.1",
        "--repeat",
        "1",
        "--prompt-tokens",
        "8",
        "--new-tokens",
        "4",
    ]
    main(["band", "--model-dir", str(model_dir), "--quantization", asked, "--json", *sizes])
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    config = EngineConfig(model_dir=str(model_dir), adapter_store="", endpoint="", quantization=asked)  # type: ignore[arg-type]
    assert first["machine"]["quantization"] == with_settled_quantization(config).quantization != "auto"


def test_structured_output_runs_as_long_as_plain(config: EngineConfig) -> None:
    (row,) = structured.measure(config, structured.Options(streams=(2,), prompt_tokens=8, new_tokens=12, repeat=1))
    assert row["tokens_per_s"] > 0 and row["without_schema"] > 0


def test_drafts_are_counted_and_leave_the_text_as_it_is(config: EngineConfig) -> None:
    (row,) = speculative.measure(config, speculative.Options(streams=(2,), new_tokens=24, repeat=1))
    assert 0 < row["accepted"] <= row["drafted"]
    assert row["same_text"] == "2/2"


def test_both_formats_of_a_base_model_are_measured_alone_and_beside_others(config: EngineConfig) -> None:
    sizes = quantization.Options(streams=(2,), adapters=(0, 2), rank=4, prompt_tokens=8, new_tokens=4, repeat=1)
    options = msgspec.structs.replace(sizes, settle_s=0.1)
    rows = list(quantization.measure(config, options))
    assert [(row["busy"], row["adapters"]) for row in rows] == [(0, 0), (0, 2), (1, 0), (1, 2)]
    assert all(row["none"] > 0 and row["int8"] > 0 for row in rows)


def test_llama_cpp_takes_turns_with_the_same_demo(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    options = llamacpp.Options(
        formats=("Q4_1",), streams=(2,), prompts=(8,), prompt_tokens=8, new_tokens=2, threads=1, rank=4, repeat=1
    )
    rows = list(llamacpp.measure(engine_config(demo_model_dir(), tmp_path), options))
    kinds = [(row["case"], row["streams"], row["adapters"], row["prompt"]) for row in rows]
    assert kinds == [("ms a token", 2, 0, 8), ("ms a token", 2, 2, 8), ("ms of a prompt", 1, 0, 8)]
    assert all(row["ours"] > 0 and row["llama.cpp"] > 0 and row["ratio"] > 0 for row in rows)


def test_adapters_on_experts_take_turns_with_their_base(tmp_path: Path) -> None:
    options = experts.Options(
        hidden=64, inner=32, experts=8, chosen=2, layers=2, vocab=300, streams=(2,), adapters=2, new_tokens=4, repeat=1
    )
    rows = list(experts.measure(engine_config(tmp_path / "no-model", tmp_path / "store"), options))
    assert [row["bound"] for row in rows] == [">= 0.8", ">= 0.8", ">= 1.2"]
    assert all(row["ours"] > 0 and row["other"] > 0 for row in rows)


def test_a_bound_is_held_by_the_median_of_what_took_turns() -> None:
    pairs = [Pair(10.0, 10.0), Pair(30.0, 20.0), Pair(11.0, 10.0)]
    row = ratio_row("2", "ms", pairs, Bound(1.15))
    assert (row["ours"], row["other"], row["value"], row["verdict"]) == (11.0, 10.0, 1.1, "PASS")
    assert ratio_row("2", "ms", pairs, Bound(1.05))["verdict"] == "FAIL"
    assert ratio_row("3", "tokens/s", pairs, Bound(1.05, is_least=True))["verdict"] == "PASS"
    assert value_row("9", "MB", float("nan"), Bound(600.0))["verdict"] == "FAIL"


def test_what_a_benchmark_asks_wrongly_ends_it(config: EngineConfig) -> None:
    workload = Workload(200)
    with BenchEngine(config) as engine, pytest.raises(RuntimeError, match="max_tokens"):
        engine.answer(workload.request([1, 2], 0))


def test_nothing_is_under_way_when_a_run_ends(config: EngineConfig) -> None:
    workload = Workload(200)
    endless = (workload.request(workload.prompt(8), 400) for _ in iter(int, 1))
    with BenchEngine(config) as engine:
        traces = run_closed(engine, [Source(endless, 3)], seconds=0.1)
        assert engine.num_under_way == 0
    assert {trace.final.finish_reason for trace in traces if trace.final} <= {"abort", "length"}
    assert all(trace.final for trace in traces)
    assert engine.stats.num_running == engine.stats.num_waiting == 0


@pytest.mark.parametrize(
    ("smaller", "larger", "expected"), [([1, 2], [3, 4], 1.0), ([1, 3], [2, 4], 0.75), ([1, 1], [1], 0.5)]
)
def test_auc_counts_the_pairs_in_order(smaller: list[float], larger: list[float], expected: float) -> None:
    assert auc(smaller, larger) == expected


def test_adapters_are_picked_as_the_name_of_their_popularity_says() -> None:
    digests = [f"{n}" for n in range(4)]
    picks: dict[Any, list[str]] = {
        popularity: [next(picked) for picked in [Workload(200).pick(digests, popularity)] for _ in range(4000)]
        for popularity in ("turns", "identical", "uniform", "zipf")
    }
    assert picks["turns"][:5] == ["0", "1", "2", "3", "0"]
    assert set(picks["identical"]) == {"0"}
    assert all(abs(picks["uniform"].count(digest) - 1000) < 150 for digest in digests)
    zipf = [picks["zipf"].count(digest) for digest in digests]
    assert abs(zipf[0] / zipf[1] - 2**1.1) < 0.4 and zipf == sorted(zipf, reverse=True)


def test_a_report_is_a_table_or_one_json_line_per_row() -> None:
    rows: list[Row] = [{"case": "a", "value": 0.25}, {"case": "b", "value": 3}]
    table, lines = io.StringIO(), io.StringIO()
    for out, as_json in ((table, False), (lines, True)):
        report = Report("slots", out, as_json=as_json)
        for row in rows:
            report.row(row)
    assert [line.split() for line in table.getvalue().splitlines()] == [
        [],
        ["case", "value"],
        ["a", "0.25"],
        ["b", "3"],
    ]
    assert [json.loads(line) for line in lines.getvalue().splitlines()] == [{"scenario": "slots", **r} for r in rows]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_option_explains_itself(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([scenario, "--help"])
    described = capsys.readouterr().out
    for name in SCENARIOS[scenario].Options.__struct_fields__:
        assert f"--{name.replace('_', '-')}" in described


def test_the_grammar_of_the_benchmark_is_enforced(config: EngineConfig) -> None:
    """The schema asks for an array, so the first token of all completions begins an array."""
    workload = Workload(200)
    with BenchEngine(config) as engine:
        options = [SamplingParams(1, seed=seed, grammar=structured.SCHEMA_GRAMMAR) for seed in range(4)]
        firsts = {engine.answer(workload.request([7], 1, sampling=sampling)).token_ids[0] for sampling in options}
    assert len(firsts) == 1
