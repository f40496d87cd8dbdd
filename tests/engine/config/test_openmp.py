"""No program of ours that computes with torch on a CPU leaves OpenMP's threads to spin for milliseconds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path

import pytest

from engine.config.openmp import BRIEF_SPIN, SPIN_COUNT, WAIT_POLICY, sleep_while_waiting, spin_briefly
from gateway.agent.commands import engine_environ
from gateway.serve.commands import engine_command
from gateway.settings import Settings
from tests.engine.models.tiny import save_tiny
from tests.patience import PATIENCE_S

TELLING_TORCH = f"""
import os, sys
sys.stdout.write(f"loaded with {{os.environ.get('{WAIT_POLICY}')}} {{os.environ.get('{SPIN_COUNT}')}}")
sys.stdout.flush()
os._exit(0)
"""
"""The source of a fake torch that prints the OpenMP wait policy and spin count at its import, then exits."""

REPOSITORY = Path(__file__).parents[3]


def _served(folder: Path) -> list[str]:
    """Return the arguments with which `lorikeet serve` and `lorikeet engine` start an engine."""
    return engine_command(Settings(data_dir=folder), folder / "model")[1:]


def _engine(folder: Path) -> list[str]:
    return f"-m engine --model-dir {folder}/model --adapter-store {folder}/store --endpoint ipc://{folder}/sock".split()


def _prepare(folder: Path) -> list[str]:
    (folder / "model.gguf").touch()
    return f"-m engine.prepare {folder}/model.gguf --out {folder}/out".split()


def _merge(folder: Path) -> list[str]:
    flags = f"--base {folder}/model --adapter {folder} --out {folder}/out"
    return f"-m gateway.cli adapter merge {flags}".split()


def _other_system(text: str) -> Callable[[Path], list[str]]:
    return lambda folder: text.split()


ENTRY_POINTS: Mapping[str, Callable[[Path], list[str]]] = {
    "the engine of serve": _served,
    "engine": _engine,
    "engine.prepare": _prepare,
    "engine.bench": _other_system("-m engine.bench throughput"),
    "engine.bench --shape": _other_system("-m engine.bench --shape smollm2-135m --random-weights"),
    "adapter merge": _merge,
    "adapters.demo.train": _other_system("-m adapters.demo.train --model unused"),
    "adapters.demo.check": _other_system("-m adapters.demo.check --model unused"),
}


def _at_load(command: list[str], folder: Path, environ: Mapping[str, str]) -> str:
    """Return the wait policy and the spin count under which a command's process imports torch."""
    (folder / "path" / "torch").mkdir(parents=True)
    (folder / "path" / "torch" / "__init__.py").write_text(TELLING_TORCH)
    clean = {name: value for name, value in os.environ.items() if name not in (WAIT_POLICY, SPIN_COUNT)}
    ended = subprocess.run(
        [sys.executable, *command],
        env=engine_environ(clean | environ) | {"PYTHONPATH": str(folder / "path")},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "loaded with " in ended.stdout, ended.stderr
    return ended.stdout.rpartition("loaded with ")[2]


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_threads_do_not_spin_for_long_in_any_program_that_loads_torch(name: str, tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "model")
    computes_steps = name in ("the engine of serve", "engine", "engine.bench", "engine.bench --shape")
    expected = f"None {BRIEF_SPIN}" if computes_steps else "PASSIVE None"
    assert _at_load(ENTRY_POINTS[name](tmp_path), tmp_path, {}) == expected


@pytest.mark.parametrize("name", ["the engine of serve", "adapters.demo.check"])
def test_what_the_user_chose_reaches_torch_alone(name: str, tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "model")
    assert _at_load(ENTRY_POINTS[name](tmp_path), tmp_path, {WAIT_POLICY: "ACTIVE"}) == "ACTIVE None"


@pytest.mark.parametrize("change", [sleep_while_waiting, spin_briefly])
@pytest.mark.parametrize("own", [{WAIT_POLICY: "ACTIVE"}, {SPIN_COUNT: "1000"}, {WAIT_POLICY: "", SPIN_COUNT: ""}])
def test_nothing_that_the_user_set_is_replaced_or_outweighed(
    change: Callable[[MutableMapping[str, str]], None], own: dict[str, str]
) -> None:
    environ = dict(own)
    change(environ)
    assert environ == own
