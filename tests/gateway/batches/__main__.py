"""`python -m tests.gateway.batches [PART ...]`: measures batches at their largest sizes, part by part, then prints a
table.

The table is stored in build/long-batches.txt as well. Exits with 1 where a part fails.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.demo import REPOSITORY, demo_model_dir
from tests.parts import Part, full, parser_of, run_parts

HERE = "tests/gateway/batches"
MODEL = ("--model-dir", str(demo_model_dir()))
PARTS = (
    Part("band", ("-m", "engine.bench", "band", *MODEL)),
    Part("simulated", full("tests/engine/scheduling/test_batch_band.py", f"{HERE}/test_deadlines.py")),
    Part("adapters", ("-m", "gateway.bench.batches", *MODEL)),
    Part("example", full("tests/e2e/test_readme.py", "-k", "labelled")),
    Part("size", full(f"{HERE}/test_size.py")),
    Part("edge", full(f"{HERE}/test_edge.py")),
    Part("turns", full(f"{HERE}/test_turns.py")),
    Part("kills", full("tests/faults/test_batch_kills.py")),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts that the command line names, or all; return 0 if every part passes.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    args = parser_of(PARTS, "python -m tests.gateway.batches", __doc__).parse_args(argv)
    return run_parts(PARTS, args.parts, REPOSITORY / "build" / "long-batches.txt")


if __name__ == "__main__":
    sys.exit(main())
