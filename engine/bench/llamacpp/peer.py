"""llama.cpp's server, without its HTTP, in a process of its own: prompts go in, times come out.

Its threads wait without computing while it has nothing to do.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

import msgspec

CONTEXT = 1024
"""The context of each stream, in tokens."""


class RequestTimes(msgspec.Struct, frozen=True):
    """The times of requests that were sent at once."""

    seconds: float
    """Seconds from sending the first request to the end of the last one."""
    processor_s: float
    """Seconds of processor time of all threads, which other work on the machine hardly changes."""
    num_tokens: int
    """The number of tokens of all answers together."""
    prompt_ms: float
    """Milliseconds that the first request's prompt took."""
    token_ms: float
    """Milliseconds that each token of the first request's answer took, on average."""


class Peer:
    """llama.cpp in a process of its own, used as a context. streams: the most requests at once."""

    def __init__(self, file: Path, num_threads: int, streams: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, remote = context.Pipe()
        self._process = context.Process(target=_serve_llamacpp, args=(file, num_threads, streams, remote), daemon=True)

    def __enter__(self) -> Peer:
        self._process.start()
        self._connection.recv()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()

    def answer(self, prompts: list[list[int]], new_tokens: int) -> RequestTimes:
        """Send all prompts at once and wait for their ends.

        Each answer has exactly new_tokens tokens, chosen greedily.
        """
        self._connection.send((prompts, new_tokens))
        return msgspec.convert(self._connection.recv(), RequestTimes)


def _serve_llamacpp(file: Path, num_threads: int, streams: int, connection: Connection) -> None:
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(file)
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = num_threads
    parameters.n_parallel, parameters.n_ctx = streams, CONTEXT * streams
    parameters.warmup = True
    server = xllamacpp.Server(parameters)

    def one(prompt: list[int], new_tokens: int) -> dict[str, float]:
        asked = {
            "prompt": prompt,
            "max_tokens": new_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        found = server.handle_completions(asked)
        answer = json.loads(found) if isinstance(found, (str, bytes)) else found
        timings: dict[str, float] = answer["timings"]
        return timings

    connection.send("ready")
    with ThreadPoolExecutor(streams) as pool:
        while True:
            try:
                prompts, new_tokens = connection.recv()
            except EOFError:
                os._exit(0)  # the server has no end
            began_s, before_s = time.perf_counter(), time.process_time()
            all_timings = list(pool.map(one, prompts, itertools.repeat(new_tokens)))
            first = all_timings[0]
            connection.send(
                {
                    "seconds": time.perf_counter() - began_s,
                    "processor_s": time.process_time() - before_s,
                    "num_tokens": int(sum(timings["predicted_n"] for timings in all_timings)),
                    "prompt_ms": float(first["prompt_ms"]),
                    "token_ms": float(first["predicted_per_token_ms"]),
                }
            )
