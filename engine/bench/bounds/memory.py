"""The memory of an engine process after its start and after requests, as the kernel counts it (`smaps_rollup`)."""

from __future__ import annotations

import gc
import multiprocessing
import re
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from engine.bench.drive import BenchEngine, Source, run_closed
from engine.bench.workload import Workload
from engine.config import EngineConfig, load_model_config
from engine.hardware import return_memory, use_huge_pages

STREAMS = 8


class Memory(NamedTuple):
    """Resident bytes of one process."""

    started: int
    """Resident bytes once the model was loaded."""
    used: int
    """Resident bytes once all requests were answered."""


def measure_memory(config: EngineConfig, requests: int, prompt_tokens: int, new_tokens: int) -> Memory:
    """Start an engine in a process of its own and let it answer requests, all of them different.

    requests: the number of requests. prompt_tokens, new_tokens: the tokens of each prompt and of each answer.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_run_requests, args=(config, requests, prompt_tokens, new_tokens, theirs), daemon=True
    )
    process.start()
    theirs.close()
    try:
        return Memory(*ours.recv())
    finally:
        process.kill()
        process.join()


def _run_requests(
    config: EngineConfig, requests: int, prompt_tokens: int, new_tokens: int, connection: Connection
) -> None:
    use_huge_pages()
    workload = Workload(load_model_config(config.model_dir).vocab_size)
    with BenchEngine(config) as engine:
        gc.collect()
        return_memory()  # as `python -m engine` does
        started = _resident_bytes()
        made = (workload.request(workload.prompt(prompt_tokens), new_tokens) for _ in range(requests))
        run_closed(engine, [Source(made, STREAMS)])
        connection.send((started, _resident_bytes()))


def _resident_bytes() -> int:
    found = re.search(r"^Rss:\s+(\d+)", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10
