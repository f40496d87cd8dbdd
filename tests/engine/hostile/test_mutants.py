"""A hostile model folder is refused in words that name its file, or served as transformers computes it.

None of them crashes the process that reads it, keeps it busy, or takes memory beyond what a tiny model needs. Every
family takes part: the engine's own code, through transformers, encoders, experts, states, and quantized files. 10,000
with --full. The environment variable FIRST_SEED is the seed to begin with.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.engine.hostile.bases import BASES

NUM_MUTANTS, NUM_MUTANTS_FULL, AT_ONCE = 24, 10_000, 250
SILENCE_S = 180.0
NAMED = (".json", ".safetensors", ".jinja", "checkpoint", "tensor", "layer", "weight", "chat template", "transformers")
"""The words of which a refusal must have one: the file, or the part of it, that is wrong."""


def test_a_hostile_folder_is_refused_in_words_or_served_as_transformers_does(tmp_path: Path, full: bool) -> None:
    first = int(os.environ.get("FIRST_SEED", "0"))
    last = NUM_MUTANTS_FULL if full else first + NUM_MUTANTS
    outcomes: Counter[str] = Counter()
    wrong = []
    for found in judged(tmp_path, first, last):
        if found["outcome"] == "refused" and not is_plain(found["words"]):
            found["outcome"] = "wrong"
        outcomes[found["outcome"]] += 1
        if found["outcome"] == "wrong":
            wrong.append(found)
            print(json.dumps({key: each for key, each in found.items() if key != "where"}), found.get("where", ""))
        if full and found["seed"] % 100 == 99:
            print(f"seed {found['seed']}: {dict(outcomes)}", flush=True)
    print(dict(outcomes))
    assert wrong == []
    assert 0 < outcomes["compared"] < outcomes["refused"]
    assert sum(outcomes.values()) == last - first


def is_plain(words: str) -> bool:
    """Tell whether a refusal is a short text that names what is wrong."""
    return 0 < len(words) < 2000 and words.isprintable() and any(each in words for each in NAMED)


def judged(root: Path, first: int, last: int) -> Iterator[dict[str, Any]]:
    """Yield the outcome of each seed.

    If the child process dies or hangs, the outcome is `wrong`, and a new child continues.

    first, last: the seeds from first up to last.
    """
    while first < last:
        seeds = (str(first), str(min(first + AT_ONCE, last)))
        command = [sys.executable, "-m", "tests.engine.hostile.child", str(root), *seeds]
        with (
            (root / "stderr").open("w") as log,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as child,
        ):
            began = None
            for line in _lines(child):
                said = json.loads(line)
                began = said.get("begins")
                if began is None:
                    first = said["seed"] + 1
                    yield said
            if began is not None:
                child.kill()
                ended = (root / "stderr").read_text()[-3000:]
                words = f"the child ended or was silent ({child.wait()})"
                yield {"seed": began, "outcome": "wrong", "words": words, "where": ended}
                first = began + 1
            elif child.wait() != 0:
                raise AssertionError((root / "stderr").read_text()[-3000:])


def _lines(child: subprocess.Popen[str]) -> Iterator[str]:
    assert child.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while selector.select(SILENCE_S):
            line = child.stdout.readline()
            if not line:
                return
            yield line


def test_all_families_take_part() -> None:
    from engine.config.encoder import ENCODERS
    from engine.config.families import FAMILIES
    from tests.engine.models.tiny import FAMILIES as TINY

    own = {config.model_type for name, (config, _, _) in TINY.items() if name in BASES}
    assert own >= set(FAMILIES)
    assert {name.partition(": ")[2] for name in BASES if name.startswith("encoder")} == ENCODERS
