"""`python -m tests.once_more`: what failed in the last run, once more and one by one.

A whole run has twice as many tests at once as processors, and now and then one of them gets no time when it needs it.
What fails here too fails. What passes was told in full by the run before, and is to be mended all the same. Exits with
1 where a test fails again, or where too many failed for that to be the reason.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MAX_TESTS = 5
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main() -> int:
    failed = list(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else []
    if not 0 < len(failed) <= MAX_TESTS:
        return 1
    print(f"\nonce more, without others beside it: {', '.join(failed)}", flush=True)
    again = [
        each
        for each in failed
        if subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", each]).returncode
    ]
    for each in failed:
        print(
            f"{each} {'failed again' if each in again else 'failed beside others and passes alone: it depends on time'}"
        )
    return 1 if again else 0


if __name__ == "__main__":
    sys.exit(main())
