"""`python -m engine.doctor`: a JSON report of this machine, with the settings of an engine as flags."""

from __future__ import annotations

import argparse
import sys

import msgspec

from engine.config import EngineConfig, UnsupportedModel
from engine.config.imports import no_collections
from engine.config.openmp import spin_briefly
from engine.config.text import read_flags
from engine.doctor.machine import read_machine
from engine.doctor.report import Report


def main(argv: list[str] | None = None) -> int:
    """Print the report of this machine; return the exit status.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m engine.doctor", description=__doc__)
    parser.add_argument(
        "--measure-s", type=float, default=0.0, metavar="N", help="seconds of measuring; 0 measures nothing"
    )
    parser.add_argument(
        "--source", default="", help="source of the model, by which a model is judged that is not prepared yet"
    )
    known, rest = parser.parse_known_args(argv)
    config = read_flags(argparse.ArgumentParser(prog="python -m engine.doctor"), EngineConfig, rest)
    machine = read_machine()
    spin_briefly()
    # Loads PyTorch, whose work would count as that of others.
    with no_collections():
        from engine.doctor.choice import choose, find_gpus
        from engine.doctor.measure import measure
        from engine.hardware import SetupError

    gpus = find_gpus()
    try:
        choice = choose(config, machine, gpus, known.source)
    except (SetupError, UnsupportedModel) as error:
        sys.stderr.write(f"engine: {error}\n")
        return 1
    is_measured = known.measure_s > 0 and choice.device == "cpu"
    measured = measure(choice, known.measure_s) if is_measured else None
    report = Report(machine=machine, gpus=gpus, choice=choice, measured=measured)
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
