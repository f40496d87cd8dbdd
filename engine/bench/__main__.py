"""`python -m engine.bench [SCENARIO]`: measure the engine, offline; `--shape NAME`: a model of random weights on a GPU.

Each side imports only what it needs: a GPU host may lack what the other one uses.
"""

from __future__ import annotations

import sys

from engine.config.openmp import spin_briefly


def main(arguments: list[str]) -> int:
    """Run the measurement that the command line names; return the exit status."""
    spin_briefly()  # transformers, too
    if any(argument.partition("=")[0] == "--shape" for argument in arguments):
        from engine.bench.shape.command import main as measure_shape

        return measure_shape(arguments)
    from engine.bench.scenarios import main as measure_scenario

    return measure_scenario(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
