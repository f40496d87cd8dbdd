"""`python -m kernels.tune`: measures sizes of blocks on this machine's GPU and writes the best to `gpu/blocks.json`.

One kernel after the other, at the shapes of Llama 3.1 8B, after all of them were compiled by as many processes as there
are processors. Sizes that do not compile, or that give another result than the sizes in force by more than rounding,
are passed over. Each question is asked beside the table's other answers as they were before, so a second run may find
better ones. `--dry` tries one of each on a CPU in Triton's interpreter, times nothing and writes nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from multiprocessing import get_context
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.bench.clock import Clock
    from kernels.bench.questions import Question

LARGEST_DIFFERENCE = 1e-2
TRIES_OF_A_DRY_RUN = 1


def main() -> None:
    """Measure each question's candidates and write the best to the table; with `--dry`, only try that they run."""
    parser = argparse.ArgumentParser(prog="python -m kernels.tune", description=__doc__)
    parser.add_argument("--dry", action="store_true", help="on a CPU, without measuring")
    parser.add_argument(
        "--only", default="", help="kernels whose key in the table holds this text; others stay as they are"
    )
    options = parser.parse_args()
    dry = options.dry
    if dry:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    import torch

    from kernels.bench.clock import CudaClock, NoClock
    from kernels.bench.questions import questions
    from kernels.bench.shapes import llama_8b, tiny
    from kernels.gpu.tuning import TABLE, device_name

    if not dry and not torch.cuda.is_available():
        sys.exit("there is no GPU here: `python -m kernels.tune --dry` runs without one")
    if not dry:
        compile_all(os.cpu_count() or 1, options.only)
    shape = tiny(torch.device("cpu")) if dry else llama_8b(torch.device("cuda"))
    clock: Clock = NoClock() if dry else CudaClock(shape.device)
    best = {
        question.key: fastest_sizes(question, clock, TRIES_OF_A_DRY_RUN if dry else None)
        for question in questions(shape)
        if options.only in question.key
    }
    if not dry:
        table = json.loads(TABLE.read_text())
        table.setdefault(device_name(shape.device), {}).update(best)
        TABLE.write_text(json.dumps(table, indent=2) + "\n")


def compile_all(num_processes: int, only: str) -> None:
    """Compile every choice of the questions whose key holds `only` into Triton's cache on disk.

    num_processes: the processes that compile.
    """
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        list(pool.map(partial(_compile_part, num_processes, only), range(num_processes)))


def _compile_part(num_parts: int, only: str, part: int) -> None:
    """Compile every num_parts-th choice, from number `part` on, with tensors that exist in shape only.

    A choice that does not compile is passed over: it is found again later.
    """
    import torch
    from triton.errors import TritonError

    from kernels.bench.questions import questions
    from kernels.bench.shapes import llama_8b

    torch.cuda.init()  # type: ignore[no-untyped-call]
    shape = llama_8b(torch.device("meta"))._replace(num_layers=1, num_copies=1)
    choices = ((question, sizes) for question in questions(shape) if only in question.key for sizes in question.sizes())
    for question, sizes in islice(choices, part, None, num_parts):
        for launch in question.launches(sizes):
            with contextlib.suppress(TritonError):
                launch.compile()


def fastest_sizes(question: Question, clock: Clock, max_tries: int | None = None) -> dict[str, int]:
    """Return the fastest sizes that are right; an empty dict where nothing is timed.

    max_tries: the most sizes that are tried; None: all.
    """
    best: dict[str, int] = {}
    best_s = float("inf")
    for sizes, seconds in islice(timed_trials(question, clock), max_tries):
        print(f"{question.key}: {sizes} {'' if seconds is None else f'{seconds * 1e6:.1f} us'}", flush=True)
        if seconds is not None and seconds < best_s:
            best, best_s = sizes, seconds
    return best


def timed_trials(question: Question, clock: Clock) -> Iterator[tuple[dict[str, int], float | None]]:
    """Yield the sizes that compile and are right, each with its seconds, or None where nothing is timed."""
    from triton.errors import TritonError

    from kernels.bench.case import relative_error

    expected = question.run({}).clone()
    for sizes in question.sizes():
        try:
            error = relative_error(question.run(sizes), expected)
            if error > LARGEST_DIFFERENCE:
                print(f"{question.key}: {sizes} is wrong by {error:.1e}", flush=True)
            else:
                yield sizes, clock.seconds(partial(question.run, sizes))
        except TritonError as error:
            print(f"{question.key}: {sizes} {type(error).__name__}", flush=True)


if __name__ == "__main__":
    main()
