"""The command line of `engine.bench.shape`: correctness first, then one table, or with --dry everything but figures."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from engine.bench.report import Report
from engine.bench.shape.sizes import DRY, DRY_MODEL, SHAPES, Sizes

if TYPE_CHECKING:
    from engine.cuda.accelerator import Accelerator
    from kernels.bench.clock import Clock


def main(arguments: list[str]) -> int:
    """Run the benchmark, and return 0; 1 if a check is red, and then there are no figures; 2 without a GPU."""
    args = _parser().parse_args(arguments)
    if args.dry:
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported, below
    import torch

    from engine.bench.shape.checks import check_logits
    from engine.bench.shape.loads import measure_loads
    from engine.bench.shape.registered import measure_registered
    from engine.bench.shape.rig import Rig, rig_config
    from engine.bench.shape.steps import measure_steps
    from engine.bench.shape.weights import RandomAdapters
    from engine.bench.shape.whole import whole_engine

    if not (args.dry or torch.cuda.is_available()):
        sys.stderr.write("engine.bench: PyTorch sees no GPU; --dry runs everything on a CPU and claims no figures\n")
        return 2
    sizes = DRY if args.dry else Sizes(**{name: getattr(args, name) for name in Sizes._fields})
    model = DRY_MODEL if args.dry else SHAPES[args.shape]
    accelerator, clock = _device(dry=args.dry)
    rates = clock.rates()
    report = Report("shape", sys.stdout, as_json=args.json)
    facts = {"device": _name(accelerator), "torch": torch.__version__, "shape": "tiny" if args.dry else args.shape}
    if rates is not None:
        facts |= {"memory_gb_per_s": round(rates.bytes_per_s / 1e9), "measured_by": rates.measured_by}
        facts |= {"bf16_tflop_per_s": round(rates.operations_per_s / 1e12)}
    report.machine(facts)
    dtype = torch.float32 if args.dry else torch.bfloat16
    rig = Rig(rig_config(model, sizes, dtype), model, dtype, accelerator)
    adapters = RandomAdapters(model, dtype, [sizes.rank], pin=rig.device.pin)
    rig.open(adapters)
    checks = list(check_logits(rig, adapters))
    for row in checks:
        report.row(row)
    if not all(row["right"] for row in checks):
        sys.stderr.write("engine.bench: a check is wrong, so there are no figures\n")
        return 1
    for row in measure_steps(rig, sizes, rates):
        report.row(row)
    with whole_engine(rig) as engine:
        for measure in (measure_registered, measure_loads):
            for row in measure(rig, engine, sizes, rates):
                report.row(row)
    return 0


def _device(*, dry: bool) -> tuple[Accelerator, Clock]:
    import torch

    from kernels.bench.clock import CudaClock, NoClock

    if dry:
        from engine.cuda.in_order import InOrderAccelerator

        return InOrderAccelerator(), NoClock()
    from engine.cuda.nvidia import CudaAccelerator

    accelerator = CudaAccelerator(torch.device("cuda"))
    return accelerator, CudaClock(accelerator.device)


def _name(accelerator: Accelerator) -> str:
    import torch

    return torch.cuda.get_device_name(accelerator.device) if accelerator.device.type == "cuda" else "interpreter"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine.bench", description=__doc__)
    parser.add_argument("--shape", required=True, choices=SHAPES, help="the model whose matrices have these sizes")
    parser.add_argument("--random-weights", required=True, action="store_true", help="the only ones there are")
    parser.add_argument("--dry", action="store_true", help="a tiny shape on a CPU, interpreted; no figures")
    parser.add_argument("--json", action="store_true", help="one JSON line per row instead of a table")
    for name, default in Sizes._field_defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help=f"(default: {default})")
    return parser
