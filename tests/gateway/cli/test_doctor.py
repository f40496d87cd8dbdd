"""`lorikeet doctor` describes this machine, and says in one line what is wrong with a setting."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from engine.config import model_digest
from gateway.cli import main
from kernels.cpu.library import installed
from kernels.cpu.matrix import FORMATS
from tests.engine.models.test_gguf import write_gguf
from tests.engine.models.tiny import save_tiny


def _environ(tmp_path: Path, **settings: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LORIKEET_")}
    return kept | {"LORIKEET_DATA_DIR": str(tmp_path / "data"), **settings}


def test_the_report_is_of_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environ = _environ(tmp_path, LORIKEET_DEVICE="cpu", LORIKEET_NUM_THREADS="1")
    assert main(["doctor", "--json", "--measure", "0.2"], environ) == 0
    report = json.loads(capsys.readouterr().out)
    machine, choice, measured = report["machine"], report["choice"], report["measured"]
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    assert machine["memory_bytes"] == int(total.split()[1]) * 1024
    assert machine["num_processors"] == len(os.sched_getaffinity(0))
    assert (choice["device"], choice["num_threads"]) == ("cpu", 1)
    assert measured["products_ms"] > 0 and measured["read_gb_per_s"] > 0
    assert measured["floor_ms"] == pytest.approx(measured["weights_bytes"] / measured["read_gb_per_s"] / 1e6, rel=0.1)
    assert not report["data_folder"]["exists"] and report["data_folder"]["free_bytes"] > 0
    assert not (tmp_path / "data").exists(), "looking makes nothing"


def test_people_read_the_path_the_advice_and_all_that_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One report covers a model with measured figures and a Ray cluster out of reach, since each report loads
    PyTorch."""
    save_tiny("llama", tmp_path / "model")
    quality = {"model_digest": model_digest(tmp_path / "model"), "format": FORMATS["int8"], "num_tokens": 9}
    quality |= {"divergence_nats": 0.0123, "perplexity_ratio": 1.0}
    (tmp_path / "model" / "lorikeet-int8.json").write_text(json.dumps(quality))
    settings = {"LORIKEET_MODEL": str(tmp_path / "model"), "LORIKEET_DTYPE": "float32", "LORIKEET_DEVICE": "cpu"}
    settings |= {"LORIKEET_PLACEMENT": "ray", "LORIKEET_RAY_ADDRESS": "127.0.0.1:1"}
    assert main(["doctor", "--measure", "0"], _environ(tmp_path, **settings)) == 0
    lines = capsys.readouterr().out.splitlines()
    ray = next(line for line in lines if line.startswith("Ray cluster"))
    assert "Ray is not installed" in ray or "the Ray cluster (127.0.0.1:1) cannot be reached" in ray
    how = next(number for number, line in enumerate(lines) if line.startswith("An engine computes here "))
    assert "on the processor in " in lines[how] and "products by PyTorch" in lines[how]
    reasons = lines[how + 1 : lines.index("", how)]
    library = installed()
    assert library is None or len(library.paths) < 2 or "0.0123 nats" in reasons[-1]
    assert "What would make it faster:" in lines
    assert not (tmp_path / "data").exists(), "looking makes nothing"


@pytest.mark.parametrize("source", ["blocks", "blocks/some.gguf"])
def test_blocks_of_a_file_that_is_not_prepared_yet_may_be_asked_for(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_gguf("llama", tmp_path, lambda name: "Q8_0")
    (folder / "model.gguf").rename(folder / "some.gguf")
    settings = {"LORIKEET_MODEL": str(tmp_path / source), "LORIKEET_QUANTIZATION": "gguf", "LORIKEET_DEVICE": "cpu"}
    assert main(["doctor", "--json", "--measure", "0"], _environ(tmp_path, **settings)) == 0
    choice = json.loads(capsys.readouterr().out)["choice"]
    assert choice["products"].startswith("gguf") or not choice["native_paths"]


@pytest.mark.parametrize("seconds", ["-1", "x", "301", "nan"])
def test_a_wrong_length_is_refused(seconds: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left:
        main(["doctor", "--measure", seconds], _environ(tmp_path))
    assert left.value.code == 2


def test_a_setting_with_which_no_engine_starts_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--measure", "0"], _environ(tmp_path, LORIKEET_NUM_THREADS="99999")) == 1
    assert "LORIKEET_NUM_THREADS" in capsys.readouterr().err
