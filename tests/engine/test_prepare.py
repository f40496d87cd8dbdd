"""A prepared model folder appears whole or not at all, and is made once per source."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from adapters.peft_format import read_adapter
from engine.config import UnsupportedModel, load_model_config, model_digest
from engine.config.gguf_file import missing_sizes
from engine.prepare.folder import SourceNote, make_folder, prepare
from engine.prepare.random_model import ADAPTER_FOLDER, RANK
from engine.prepare.sources import PreparationFailed, demo_file, keeps_blocks
from tests.demo import QUESTIONS, chat_ids, demo_model_dir
from tests.engine.harness import engine_config, greedy, run_engine

CONFIG = {
    "model_type": "llama",
    "vocab_size": 8,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "max_position_embeddings": 16,
}
FILES = {
    "config.json": json.dumps(CONFIG),
    "tokenizer.json": "{}",
    "chat_template.jinja": "{{ messages }}",
    "model.safetensors": "",
}
NOTE = SourceNote(1, "gguf", "model.gguf:1:1")


def fill(folder: Path, files: dict[str, str] = FILES) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)


def test_a_folder_is_made_once_and_again_only_when_the_source_changes(tmp_path: Path) -> None:
    built: list[Path] = []

    def build(folder: Path) -> None:
        built.append(folder)
        fill(folder)

    out = tmp_path / "models" / "base"
    assert make_folder(NOTE, out, build, chat=True) == out
    assert make_folder(NOTE, out, build, chat=True) == out
    assert len(built) == 1
    make_folder(SourceNote(1, "gguf", "model.gguf:2:2"), out, build, chat=True)
    assert len(built) == 2 and (out / "config.json").exists()
    assert [path.name for path in out.parent.iterdir() if path.is_dir()] == ["base"]


@pytest.mark.parametrize(("factor", "is_told"), [(8.0, True), (1.0, False)])
def test_a_folder_that_was_converted_without_a_scaling_stays_and_is_reported(
    factor: float, is_told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "model.gguf", tmp_path / "base"
    writer = GGUFWriter(file, "llama")
    writer.add_rope_scaling_factor(factor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    found = file.stat()
    note = SourceNote(1, "gguf", f"{file.name}:{found.st_size}:{found.st_mtime_ns}")
    make_folder(note, out, fill, chat=False)
    digest = model_digest(out)
    assert prepare(str(file), out) == out and model_digest(out) == digest
    told = "converted without the file's scaling of the rotation; remove the folder and make a new revision of the pool"
    assert (told in capsys.readouterr().err) is is_told
    config = CONFIG | {"rope_parameters": {"rope_type": "linear", "factor": factor}}
    (out / "config.json").write_text(json.dumps(config))
    assert prepare(str(file), out) == out
    assert told not in capsys.readouterr().err


def test_a_folder_that_was_cut_off_is_never_taken(tmp_path: Path) -> None:
    def die(folder: Path) -> None:
        fill(folder, {"config.json": "{}", "left-over": ""})
        raise KeyboardInterrupt

    out = tmp_path / "base"
    with pytest.raises(KeyboardInterrupt):
        make_folder(NOTE, out, die, chat=True)
    assert not out.exists()
    make_folder(NOTE, out, fill, chat=True)
    assert not (out / "left-over").exists()


@pytest.mark.parametrize("missing", FILES)
def test_a_source_that_lacks_a_file_is_refused_by_its_name(tmp_path: Path, missing: str) -> None:
    def build(folder: Path) -> None:
        fill(folder, {name: text for name, text in FILES.items() if name != missing})

    with pytest.raises(PreparationFailed, match=missing.replace("model.", r"\*.")):
        make_folder(NOTE, tmp_path / "base", build, chat=True)
    assert not (tmp_path / "base").exists()


def test_a_safetensors_folder_is_used_in_place(tmp_path: Path) -> None:
    fill(tmp_path)
    assert prepare(str(tmp_path), tmp_path / "never") == tmp_path
    assert not (tmp_path / "never").exists()


def test_a_family_that_the_engine_does_not_compute_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, FILES | {"config.json": json.dumps(CONFIG | {"model_type": "mamba"})})
    with pytest.raises(UnsupportedModel, match="mamba"):
        prepare(str(tmp_path), tmp_path / "never")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    fill(tmp_path, FILES | {"model.safetensors.index.json": json.dumps(index)})
    with pytest.raises(PreparationFailed, match=r"lacks model-2.safetensors"):
        prepare(str(tmp_path), tmp_path / "never")


def test_a_gguf_file_is_linked_and_serves_by_its_own_blocks(tmp_path: Path) -> None:
    source = tmp_path / "some.gguf"
    shutil.copyfile(demo_file(tmp_path), source)
    folder = prepare(str(source), tmp_path / "out")
    assert sorted(path.suffix for path in folder.iterdir() if path.stat().st_size > 10_000_000) == [".gguf"]
    assert (folder / "model.gguf").samefile(source)
    assert prepare(str(source), tmp_path / "out") == folder
    assert prepare(str(folder), tmp_path / "never") == folder, "in place"
    ours, converted = load_model_config(folder), load_model_config(demo_model_dir())
    assert ours == converted
    requests = [greedy(str(number), chat_ids(question), 1) for number, question in enumerate(QUESTIONS[:5])]
    answers = [
        run_engine(engine_config(where, tmp_path / "store", quantization=quantized, dtype="float32"), requests)
        for where, quantized in [(folder, "auto"), (demo_model_dir(), "none")]
    ]
    for request in requests:
        # Rounding the file's numbers to bfloat16 changes more than the products do.
        blocks, rounded = (answer[request.request_id] for answer in answers)
        (a,), (b,) = blocks.logprobs, rounded.logprobs
        assert abs(a.logprob - b.logprob) < 0.1


def test_a_model_that_was_converted_before_keeps_its_digest(tmp_path: Path) -> None:
    source, out = tmp_path / "some.gguf", tmp_path / "out"
    shutil.copyfile(demo_file(tmp_path), source)
    found = source.stat()
    note = SourceNote(1, "gguf", f"some.gguf:{found.st_size}:{found.st_mtime_ns}")
    make_folder(note, out, fill, chat=False)
    before = model_digest(out)
    assert prepare(str(source), out) == out
    assert model_digest(out) == before


@pytest.mark.parametrize("converts", [False, True])
@pytest.mark.parametrize("lacking", [("block_count",), ("embedding_length", "attention.head_count"), ()])
def test_a_gguf_file_that_does_not_say_how_large_its_model_is_is_refused_by_key(
    lacking: tuple[str, ...], converts: bool, tmp_path: Path
) -> None:
    source = tmp_path / "some.gguf"
    writer = GGUFWriter(source, "llama")
    for key in ("context_length", "block_count", "embedding_length", "feed_forward_length", "attention.head_count"):
        if key not in lacking:
            writer.add_uint32(f"llama.{key}", 8)
    number = GGMLQuantizationType.Q8_0
    writer.add_tensor("blk.0.attn_q.weight", quantize(np.zeros((32, 32), np.float32), number), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert keeps_blocks(source)
    keys = [f"llama.{key}" for key in lacking]
    assert missing_sizes(source) == keys
    if lacking:
        with pytest.raises(PreparationFailed, match=f"some.gguf does not say .*: it lacks {', '.join(keys)}$"):
            prepare(str(source), tmp_path / "out", converts=converts)
        assert not (tmp_path / "out").exists()


def test_a_gguf_file_is_converted_where_that_is_asked_for(tmp_path: Path, full: bool) -> None:
    if not full:
        pytest.skip("half a minute: the demo's folder is converted before every run")
    source = tmp_path / "some.gguf"
    shutil.copyfile(demo_file(tmp_path), source)
    folder = prepare(str(source), tmp_path / "out", converts=True)
    assert (folder / "model.safetensors").exists()
    assert not (folder / "model.gguf").exists()


def test_the_hub_out_of_reach_is_one_clear_line_and_leaves_nothing_that_counts(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.with_name("out.partial").mkdir()
    fill(out.with_name("out.partial"))
    answer = subprocess.run(
        [sys.executable, "-m", "engine.prepare", "owner/name", "--out", str(out)],
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1 and answer.stdout == ""
    assert "error: downloading owner/name failed" in answer.stderr.splitlines()[-1]
    assert not out.exists()


def test_the_random_demo_model_is_the_same_everywhere_and_brings_its_adapter(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = prepare("demo-random", tmp_path / "random")
    assert "%|" not in "".join(capfd.readouterr()), "progress is told in lines, without bars"
    config = load_model_config(folder)
    assert (config.family, config.num_layers) == ("llama", 2)
    assert model_digest(folder) == "014764a1ccc3" + model_digest(folder)[12:]
    adapter = read_adapter(folder / ADAPTER_FOLDER)
    assert adapter.rank_max == RANK
    assert prepare("demo-random", tmp_path / "random") == folder
