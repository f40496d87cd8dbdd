"""`python -m tests.kernels.cpu.sanitized [address|undefined|thread ...]`: the native tests with GCC's sanitizers.

Each sanitizer gets a library of its own in build/native, loaded into an ordinary Python: its runtime comes first by
LD_PRELOAD. Ends with 1 where a sanitizer or a test complains.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kernels.cpu import build

TESTS = ("tests/kernels/cpu", "tests/engine/cpu/test_native.py")
FOLDER = Path("build/native")

# Allocations that are too large are what some tests ask for. Python and PyTorch are not built for leaks to be told.
OPTIONS = {
    "address": {"ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:abort_on_error=1:handle_segv=0"},
    "undefined": {"UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1"},
    # Only what the library itself does: PyTorch's OpenMP is not built with it, and looks like races.
    "thread": {"TSAN_OPTIONS": "ignore_noninstrumented_modules=1:allocator_may_return_null=1:exitcode=66"},
}
RUNTIMES = {"address": "libasan.so", "undefined": "libubsan.so", "thread": "libtsan.so"}


def main(names: list[str]) -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    build.compiler = lambda: ["c++"]  # the sanitizers' runtimes are GCC's
    failed = [name for name in names or OPTIONS if not _passes(name)]
    print("failed: " + ", ".join(failed) if failed else "all pass")
    return 1 if failed else 0


def _passes(name: str) -> bool:
    library = FOLDER.absolute() / f"{name}.so"
    print(f"building {library}", flush=True)
    build.build(library, (f"-fsanitize={name}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g"))
    runtime = subprocess.check_output(["c++", f"-print-file-name={RUNTIMES[name]}"], text=True).strip()
    # Without random addresses: those of some kernels are more than TSan's shadow memory has room for.
    command = ["setarch", "-R", sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    environ = {**os.environ, **OPTIONS[name], "LD_PRELOAD": runtime}
    return not subprocess.run([*command, f"--native-library={library}", *TESTS], env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
