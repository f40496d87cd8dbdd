"""A damaged adapter is refused with a reason, or it is a good one whose digest stands for exactly what it computes.

300 mutants in CI, 50,000 with --full. The environment variable FIRST_SEED is the seed to begin with.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from pathlib import Path

from safetensors import deserialize

from adapters.errors import AdapterRejected
from adapters.inspection import inspect
from adapters.peft_config import CONFIG_NAME
from adapters.peft_format import FILE_NAMES, WEIGHTS_NAME
from tests.adapters.hostile.case import BASE, BOUNDS, names_in
from tests.adapters.hostile.forks import Forks
from tests.adapters.hostile.mutants import make
from tests.adapters.memory import peak_bytes

NUM_MUTANTS, NUM_MUTANTS_FULL = 300, 50_000
MAX_CPU_S = 1.0
PARENT_MAY_GROW_BYTES = 64 << 20

Content = bytes
"""The type of a digest of an adapter's weights, which takes less memory than the weights."""


async def test_a_mutant_is_refused_or_its_digest_is_that_of_its_content(
    forks: Forks, tmp_path: Path, full: bool
) -> None:
    first = int(os.environ.get("FIRST_SEED", "0"))
    contents: dict[str, Content] = {}
    digests: dict[Content, str] = {}
    num_accepted = num_refused = grown_bytes = 0
    for seed in range(first, NUM_MUTANTS_FULL if full else first + NUM_MUTANTS):
        source, into = fresh(tmp_path / "source"), fresh(tmp_path / "into")
        path = make(seed, source)
        before_bytes = peak_bytes(reset=True)
        try:
            report = await inspect(path, into, BASE, BOUNDS, forks)
        except AdapterRejected as refusal:
            grown_bytes = max(grown_bytes, peak_bytes() - before_bytes)
            assert all(reason and reason.isprintable() for reason in refusal.reasons), seed
            assert names_in(into) == [], seed
            num_refused += 1
        else:
            grown_bytes = max(grown_bytes, peak_bytes() - before_bytes)
            assert names_in(into) == sorted(FILE_NAMES), seed
            content = computed(into)
            assert contents.setdefault(report.digest, content) == content, f"seed {seed}: one digest, two contents"
            assert digests.setdefault(content, report.digest) == report.digest, f"seed {seed}: two digests, one content"
            num_accepted += 1
        assert forks.cpu_s < MAX_CPU_S, seed
        assert names_in(tmp_path) == ["into", "source"], seed
        if full and seed % 1000 == 999:
            print(f"seed {seed}: {num_accepted} accepted as {len(digests)} contents, {num_refused} refused")
    assert grown_bytes < PARENT_MAY_GROW_BYTES
    assert num_accepted > 0.1 * num_refused > 0


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def computed(folder: Path) -> Content:
    """Return a digest of the modules' scaling and bytes, as the library that defines the format reads them."""
    config = json.loads((folder / CONFIG_NAME).read_text())
    tensors = {
        name.replace(".default.weight", ".weight"): (entry["dtype"], tuple(entry["shape"]), bytes(entry["data"]))
        for name, entry in deserialize((folder / WEIGHTS_NAME).read_bytes())
    }
    content = hashlib.sha256()
    for name in sorted(tensors):
        module, _, side = name.removesuffix(".weight").rpartition(".")
        if side == "lora_A":
            rank = tensors[name][1][0]
            alpha = pattern_value(config.get("alpha_pattern") or {}, module, config["lora_alpha"])
            scaling = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
            for dtype, shape, data in (tensors[name], tensors[f"{module}.lora_B.weight"]):
                content.update(repr((module, scaling, dtype, shape)).encode())
                content.update(data)
    return content.digest()


def pattern_value(patterns: dict[str, float], module: str, default: float) -> float:
    """Return a module's value among patterns that are plain names, as the mutants' patterns are."""
    return next((value for key, value in patterns.items() if f".{module}".endswith(f".{key}")), default)
