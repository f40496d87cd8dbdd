"""`python -m kernels.bench`: every kernel against its floor on this machine's GPU; `--dry` runs all of it on a CPU.

First every operation is compared with its reference at the shapes to be measured: if one is wrong, there are no
figures. A dry run uses tiny shapes and Triton's interpreter, and measures nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernels.bench.case import Case
    from kernels.bench.clock import Clock
    from kernels.bench.floors import Rates
    from kernels.bench.shapes import Shape

LARGEST_ERROR = 1e-2  # in bf16


def main() -> int:
    """Check every kernel against its reference, then print its time and floor; return 1 where one is wrong, else 0."""
    parser = argparse.ArgumentParser(prog="python -m kernels.bench", description=__doc__)
    parser.add_argument("--dry", action="store_true", help="tiny shapes on a CPU, no figures")
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    options = parser.parse_args()
    if options.dry:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    shape, clock = _device(options.dry)
    print(f"{shape.device}, {shape.dtype}, hidden {shape.hidden}, {shape.num_layers} layers")
    if wrong := _check(shape, options.only):
        print(f"wrong, so there are no figures: {', '.join(wrong)}")
        return 1
    _print_measurements(shape, clock, options.only)
    return 0


def _device(dry: bool) -> tuple[Shape, Clock]:
    import torch

    from kernels.bench.clock import CudaClock, NoClock
    from kernels.bench.shapes import llama_8b, tiny

    torch.manual_seed(0)
    if dry:
        return tiny(torch.device("cpu")), NoClock()
    if not torch.cuda.is_available():
        sys.exit("there is no GPU here: `python -m kernels.bench --dry` runs without one")
    device = torch.device("cuda")
    return llama_8b(device), CudaClock(device)


def _check(shape: Shape, only: str) -> list[str]:
    """Return the names of the cases that are wrong, each with its relative error."""
    wrong = []
    for case in _cases(shape, only):
        error = case.error()
        if not error <= LARGEST_ERROR:
            wrong.append(f"{case.name} (relative error {error:.1e})")
    return wrong


def _print_measurements(shape: Shape, clock: Clock, only: str) -> None:
    rates = clock.rates()
    if rates is None:
        print("dry run: everything runs, nothing is measured")
    else:
        print(f"memory {rates.bytes_per_s / 1e12:.2f} TB/s (by {rates.measured_by}),", end=" ")
        print(f"product {rates.operations_per_s / 1e12:.0f} TFLOP/s\n")
        print(f"{'':60}{'us':>10}{'floor us':>10}  bound by    ratio")
    for case in _cases(shape, only):
        seconds = clock.seconds(case.run)
        print(case.name if rates is None or seconds is None else _row(case, seconds, rates), flush=True)


def _row(case: Case, seconds: float, rates: Rates) -> str:
    from kernels.bench.floors import floor

    least = floor(case.work, rates)
    bound = "memory" if least.is_memory else "products"
    return f"{case.name:60}{seconds * 1e6:10.1f}{least.seconds * 1e6:10.1f}  {bound:8}{seconds / least.seconds:9.2f}"


def _cases(shape: Shape, only: str) -> Iterator[Case]:
    from kernels.bench.layer import layer_cases
    from kernels.bench.lora import lora_cases

    for cases in (lora_cases, layer_cases):
        for case in cases(shape):
            if only in case.name:
                yield case


if __name__ == "__main__":
    sys.exit(main())
