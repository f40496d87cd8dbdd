"""The scenarios of `python -m engine.bench [SCENARIO]`. Without arguments: throughput of the demo model.

Knows the list of scenarios and the form of their rows, and nothing of the measurements.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from engine.bench import (
    band,
    bounds,
    fairness,
    llamacpp,
    overview,
    prefix,
    quantization,
    slots,
    speculative,
    structured,
    throughput,
)
from engine.bench.bounds import decoders, experts, served
from engine.bench.options import add_options, read_options
from engine.bench.report import Report, machine
from engine.config import EngineConfig
from engine.hardware import use_huge_pages
from engine.setup import with_settled_quantization

DEMO_MODEL = "build/models/smollm2-135m-instruct"
SCENARIOS = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        overview,
        throughput,
        slots,
        prefix,
        fairness,
        band,
        structured,
        speculative,
        quantization,
        llamacpp,
        bounds,
        served,
        decoders,
        experts,
    )
}


def main(arguments: list[str]) -> int:
    """Run the scenario that the command line names; return 0 unless a row says FAIL."""
    use_huge_pages()  # for transformers, too
    args = _parser().parse_args(arguments or ["throughput"])
    scenario = SCENARIOS[args.scenario]
    report = Report(args.scenario, sys.stdout, as_json=args.json)
    has_failed = False
    with tempfile.TemporaryDirectory(prefix="lorikeet-bench-") as folder:
        config = EngineConfig(
            model_dir=args.model_dir,
            adapter_store=str(Path(folder) / "store"),
            endpoint="",
            dtype=args.dtype,
            quantization=args.quantization,
        )
        report.machine(machine(config) | {"quantization": with_settled_quantization(config).quantization})
        for row in scenario.measure(config, read_options(scenario.Options, args)):
            report.row(row)
            has_failed |= row.get("verdict") == "FAIL"
    return int(has_failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine.bench", description=__doc__)
    scenarios = parser.add_subparsers(dest="scenario", required=True, metavar="SCENARIO")
    for name, module in SCENARIOS.items():
        about = (module.__doc__ or "").strip()
        one = scenarios.add_parser(name, help=about.splitlines()[0], description=about)
        one.add_argument("--model-dir", default=DEMO_MODEL, help="folder with config.json and weights")
        one.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
        one.add_argument("--quantization", default="auto", choices=("auto", "none", "int8", "int4", "gguf"))
        one.add_argument("--json", action="store_true", help="one JSON line per row instead of a table")
        add_options(one, module.Options)
    return parser
