"""`python -m kernels.bench.cpu_linear`: all products of one decode step on this machine's CPU, each way.

The shapes are the demo model's, so that a step is 117 million weights. Every way takes its turn in each round, and a
figure is the least and the median of all rounds, in milliseconds: the machine may have other work. With `--busy N`
processes that compute without end run beside the second half of the rounds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from kernels.cpu.library import installed
from kernels.cpu.linear import NativeLinear, linear_reference
from kernels.cpu.matrix import FORMATS, Format, NativeMatrix

if TYPE_CHECKING:
    from torch import Tensor

LAYERS = 30
LAYER = ((960, 576), (576, 576), (3072, 576), (576, 1536))
HEAD = (49152, 576)
LARGEST_ERROR = 1e-5  # beside the reference, relative

Product = Callable[["Tensor"], "Tensor"]


def main() -> int:
    """Print the times of each way at each number of rows, alone and beside busy processes; return 0."""
    parser = argparse.ArgumentParser(prog="python -m kernels.bench.cpu_linear", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--busy", type=int, default=1, help="busy processes beside the second half (0: none)")
    parser.add_argument("--only", default="", help="ways whose name holds this text")
    options = parser.parse_args()
    # As the engine does; it is read when torch is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    import torch

    ways = {name: steps for name, steps in _ways().items() if options.only in name}
    print(f"{_processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}; ms, least / median")
    print(
        f"{'':24}" + "".join(f"{f'{rows} rows, {beside}':>22}" for beside in ("alone", "busy") for rows in options.rows)
    )
    cells = [_times(ways, options.rows, options.rounds)]
    with _busy_processes(options.busy):
        cells.append(_times(ways, options.rows, options.rounds if options.busy else 0))
    for name in ways:
        figures = [times[name, rows] for times in cells for rows in options.rows if times]
        print(f"{name:24}" + "".join(f"{f'{min(each):.1f} / {median(each):.1f}':>22}" for each in figures))
    return 0


def _ways() -> dict[str, list[tuple[int, Product]]]:
    """Return the products of a step in their order, each with its number of inputs, for each way of computing them.

    The ways are PyTorch in each dtype, and the native kernels in each format, on each path but the slowest.
    """
    import torch

    from kernels.linear import Linear

    torch.manual_seed(0)
    shapes = [*LAYER * LAYERS, HEAD]
    weights = [torch.randn(shape) * 0.05 for shape in shapes]
    ways: dict[str, list[tuple[int, Product]]] = {}
    for dtype in (torch.float32, torch.bfloat16):
        linears = [Linear(weight.to(dtype)) for weight in weights]
        ways[str(dtype)] = [(shape[1], linear) for shape, linear in zip(shapes, linears, strict=True)]
    library = installed()
    if library is None:
        return ways
    for kind in FORMATS:
        matrices = [NativeMatrix.quantized(library, weight, kind) for weight in weights]
        for path in library.paths[1:]:
            ours = [NativeLinear(matrix, path=path) for matrix in matrices]
            _check(ours[0], weights[0], kind)
            ways[f"{kind} {path}"] = [(shape[1], linear) for shape, linear in zip(shapes, ours, strict=True)]
    return ways


def _check(linear: NativeLinear, weight: Tensor, kind: Format) -> None:
    """Compare the product with its reference, and end the program when its relative error is above LARGEST_ERROR."""
    import torch

    x = torch.randn(9, weight.shape[1])
    theirs = linear_reference(x, weight, kind=kind)
    error = float((linear(x) - theirs).norm() / theirs.norm())
    if not error <= LARGEST_ERROR:
        sys.exit(f"wrong, so there are no figures: relative error {error:.1e}")


def _times(
    ways: dict[str, list[tuple[int, Product]]], num_rows: list[int], rounds: int
) -> dict[tuple[str, int], list[float]]:
    import torch

    times: dict[tuple[str, int], list[float]] = {}
    for number in range(rounds + 1):
        for name, steps in ways.items():
            dtype = torch.bfloat16 if "bfloat16" in name else torch.float32
            for rows in num_rows:
                inputs = {width: torch.randn(rows, width, dtype=dtype) for width, _ in steps}
                started_s = time.perf_counter()
                for width, product in steps:
                    product(inputs[width])
                if number:  # the first round warms up
                    times.setdefault((name, rows), []).append(1e3 * (time.perf_counter() - started_s))
    return times if rounds else {}


def product_times(num_rows: Sequence[int], rounds: int) -> dict[int, list[float]]:
    """Return the milliseconds of all products of a step on the native kernels' path in use, by number of rows.

    rounds: how often each is timed; a time for each round is returned.
    """
    import torch

    library = installed()
    if library is None:
        raise RuntimeError("the native kernels are not built")
    torch.manual_seed(0)
    shapes = [*LAYER * LAYERS, HEAD]
    steps: list[tuple[int, Product]] = [
        (shape[1], NativeLinear.of(library, "int8", torch.randn(shape) * 0.05)) for shape in shapes
    ]
    times = _times({"int8": steps}, list(num_rows), rounds)
    return {number: times["int8", number] for number in num_rows}


@contextmanager
def _busy_processes(number: int) -> Iterator[None]:
    processes = [multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(number)]
    for process in processes:
        process.start()
    try:
        time.sleep(1.0 if number else 0.0)  # until they have loaded
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _spin() -> None:
    while True:
        pass


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    sys.exit(main())
