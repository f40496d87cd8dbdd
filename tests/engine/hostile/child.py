"""Judges hostile folders, seed by seed, in a process of its own whose memory is bounded: a line of JSON for each.

`python -m tests.engine.hostile.child ROOT FIRST LAST`. A line before each seed says that it begins, so that the reader
knows which seed killed the process or never ended.
"""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from engine.config import UnsupportedModel, load_model_config
from engine.hardware import SetupError
from gateway.backends.engine.model import EngineModel
from gateway.domain.errors import InvalidRequest
from gateway.text.tokenizer_files import BadTokenizer
from tests.engine.harness import Answer, engine_config, greedy, run_engine
from tests.engine.hostile.bases import BASES, GENERAL_PREFIX, base_of
from tests.engine.hostile.mutants import make
from tests.engine.reference import Claim, assert_greedy_follows

PROMPT = [(7 * i) % 190 + 1 for i in range(21)]
MORE_BYTES = 192 << 20
"""The most bytes of memory that judging one tiny model may take: its files have two megabytes at most."""
MOST_S = 20.0
STRIDE = 37
"""The step between the families of consecutive seeds, so that a few seeds cover all kinds."""
LARGEST = 1e4
"""The largest number in a config whose answer is compared: beyond it, the order of sums changes results."""
REFUSALS = (UnsupportedModel, SetupError, BadTokenizer, InvalidRequest)


def judge(seed: int, root: Path) -> dict[str, Any]:
    """Return the outcome for the folder of a seed: `refused` with the message, `served`, `compared`, or `wrong`."""
    names = list(BASES)
    name, other = names[(seed * STRIDE) % len(names)], names[(seed * 7 + 3) % len(names)]
    right, others = base_of(name, root), base_of(other, root)
    folder = root / "mutant"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(right, folder)
    kind, files = make(seed, folder, others)
    found = {"seed": seed, "base": name, "kind": kind, "files": files}
    rounds = (seed + seed // len(names)) % 3 == 1
    began = time.process_time()
    _bound_memory()
    try:
        answer = _taken(folder, name, "int8" if rounds else "none")
        compared = kind != "tokenizer" and not rounds and _compared(folder, name, answer)
        found |= {"outcome": "compared" if compared else "served"}
    except FileNotFoundError as missing:
        found |= {"outcome": "refused" if str(missing).endswith("tokenizer.json does not exist") else "wrong"}
        found |= {"words": str(missing)}
    except REFUSALS as refused:
        found |= {"outcome": "refused", "words": str(refused)}
    except BaseException as error:  # what nobody expects of a bad folder
        found |= {"outcome": "wrong", "words": f"{type(error).__name__}: {error}", "where": traceback.format_exc()}
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    found["seconds"] = round(time.process_time() - began, 2)
    if found["seconds"] > MOST_S:
        found |= {"outcome": "wrong", "words": f"took {found['seconds']} s"}
    return found


def _bound_memory() -> None:
    lines = Path("/proc/self/status").read_text().splitlines()
    now = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (now + MORE_BYTES, resource.RLIM_INFINITY))


def _taken(folder: Path, name: str, quantization: str) -> Answer | None:
    """Return the answer of an engine that loads a folder once a gateway has read it, or None."""
    decoder = "transformers" if name.startswith(GENERAL_PREFIX) else "auto"
    model = EngineModel.load(folder)
    if model.config.task.kind == "text" and (folder / "chat_template.jinja").is_file():
        model.prepare_chat([{"role": "user", "content": "Hello, wide world!"}])
    config = load_model_config(folder, decoder)
    if config.decoder == "transformers" or config.recurrence is not None or config.quantized is not None:
        quantization = "none"
    task = config.task
    fields: dict[str, Any] = {"text": {}, "embed": {"pooling": task.pooling}, "rerank": {"pooling": "score"}}[task.kind]
    request = greedy("r", [each % config.vocab_size for each in PROMPT], 0 if fields else 3, **fields)
    bounds = {"kv_cache_bytes": 4 << 20, "max_batched_tokens": 64}
    engine = engine_config(folder, folder / "store", decoder=decoder, quantization=quantization, **bounds)
    return run_engine(engine, [request])["r"]


def _compared(folder: Path, name: str, answer: Answer | None) -> bool:
    """Compare an answer with transformers', and return True; return False where the two cannot be compared.

    They can be where transformers loads the folder with all weights in their places.
    """
    if answer is None or not answer.token_ids or name.startswith("packed: ") or not _is_tame(answer):
        return False
    raw = json.loads((folder / "config.json").read_text())
    if any(isinstance(each, int | float) and abs(each) > LARGEST for each in raw.values()):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, told = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
            model.eval()(torch.tensor([PROMPT]) % model.config.vocab_size)
    except Exception:  # of whatever kind: transformers refuses in many
        return False
    if told["missing_keys"] or told["mismatched_keys"]:
        return False
    prompt = [each % model.config.vocab_size for each in PROMPT]
    assert_greedy_follows(model, [Claim(prompt, answer.token_ids, answer.logprobs)], 2e-3)
    return True


def _is_tame(answer: Answer) -> bool:
    return all(math.isfinite(each.logprob) and each.logprob > -50 for each in answer.logprobs)


def main() -> None:
    """Judge the seeds that the command line names."""
    root, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to it
    transformers_logging.set_verbosity_error()
    torch.set_num_threads(1)
    for seed in range(first, last):
        print(json.dumps({"begins": seed}), file=said, flush=True)
        print(json.dumps(judge(seed, root)), file=said, flush=True)


if __name__ == "__main__":
    main()
