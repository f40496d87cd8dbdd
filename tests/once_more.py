"""Run the few tests that failed in the last run once more, one by one, and print loudly which of them pass alone.

`python -m tests.once_more`, from the repository. A test that fails beside others and passes alone is a flake: it
depends on time, or on what runs beside it, and is to be mended. Each is printed as `FLAKE: <test id>` and appended to
`build/flakes.txt` with the time and the commit. Exits with 1 where a test fails again, or where more than `MAX_TESTS`
failed.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MAX_TESTS = 5
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
FLAKES = Path("build/flakes.txt")
RULER = "!" * 100


def main() -> int:
    """Return the exit code of `make test`: 0 where each test that failed beside others passes alone."""
    failed = list(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else []
    if not 0 < len(failed) <= MAX_TESTS:
        return 1
    print(f"\nonce more, without others beside it: {', '.join(failed)}", flush=True)
    again = [test for test in failed if not _passes(test)]
    flakes = [test for test in failed if test not in again]
    _note(flakes)
    lines = [f"FAILED AGAIN: {test}" for test in again] + [f"FLAKE: {test}" for test in flakes]
    print("", RULER, *lines, RULER, sep="\n", flush=True)
    return 1 if again else 0


def _passes(test: str) -> bool:
    return subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", test]).returncode == 0


def _note(flakes: Sequence[str]) -> None:
    """Append a line for each flake to build/flakes.txt, which covers many runs."""
    now = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"
    FLAKES.parent.mkdir(exist_ok=True)
    with FLAKES.open("a") as file:
        file.writelines(f"{now} {_commit()} {test}\n" for test in flakes)


def _commit() -> str:
    """Return the short name of the commit that is checked out, or `unknown` where there is no repository."""
    try:
        done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
