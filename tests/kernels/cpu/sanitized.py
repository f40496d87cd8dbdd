"""Runs the tests of the native kernels with GCC's sanitizers, and compares their bits with those of ARM's processors.

`python -m tests.kernels.cpu.sanitized [address|undefined|thread|aarch64 ...]`; without arguments, everything. With a
sanitizer: `jobs.cpp` runs jobs of the pool of threads, and each sanitizer gets a library of its own in build/native,
loaded into an ordinary Python: its runtime comes first by LD_PRELOAD. As aarch64: `bits.cpp` is compiled for this
machine and, by the ziglang package, for ARM, where QEMU runs it (Debian's package qemu-user); both have to print the
same. Ends with 1 where anything complains.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kernels.cpu import build

TESTS = ("tests/kernels/cpu", "tests/engine/cpu/test_native.py")
FOLDER = Path("build/native")
BITS = Path(__file__).with_name("bits.cpp")
JOBS = Path(__file__).with_name("jobs.cpp")
NUM_JOBS = 20_000
ARM = "aarch64"

# Allocations that are too large are what some tests ask for. Python and PyTorch are not built for leaks to be told.
OPTIONS = {
    "address": {"ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:abort_on_error=1:handle_segv=0"},
    "undefined": {"UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1"},
    # Only what the library itself does: PyTorch's OpenMP is not built with it, and looks like races.
    "thread": {"TSAN_OPTIONS": "ignore_noninstrumented_modules=1:allocator_may_return_null=1:exitcode=66"},
}
PATIENT = "-DLORIKEET_PATIENCE_NS=1000000000000"
"""The flag that makes the pool wait for slow threads instead of taking their units away.

A thread whose unit was taken away reads what later jobs write: harmless, but a data race to the sanitizer.
"""
RUNTIMES = {"address": "libasan.so", "undefined": "libubsan.so", "thread": "libtsan.so"}


def main(names: list[str]) -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = names or [*OPTIONS, ARM]
    failed = [ARM] if ARM in wanted and not _same_bits_on_arm() else []
    build.compiler = lambda machine="": ["c++"]  # the sanitizers' runtimes are GCC's
    failed += [name for name in wanted if name != ARM and not _passes(name)]
    print("failed: " + ", ".join(failed) if failed else "all pass")
    return 1 if failed else 0


def build_jobs(target: Path, flags: Sequence[str] = ()) -> Path:
    """Compile `jobs.cpp` with the pool of threads, and return the path of the program.

    Raises BuildError: when the compiler fails.
    """
    sources = [str(JOBS), str(build.SOURCES / "pool.cpp")]
    build._run(
        [*build.compiler(), *build.FLAGS, *flags, f"-I{build.SOURCES}", *sources, "-lpthread", "-o", str(target)]
    )
    return target


def _passes(name: str) -> bool:
    flags = (f"-fsanitize={name}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g")
    jobs = build_jobs(FOLDER.absolute() / f"jobs-{name}", flags)
    print(f"running {NUM_JOBS} jobs, {name}", flush=True)
    if subprocess.run(
        ["setarch", "-R", str(jobs), str(NUM_JOBS)], env={**os.environ, **OPTIONS[name]}, check=False
    ).returncode:
        return False
    library = FOLDER.absolute() / f"{name}.so"
    print(f"building {library}", flush=True)
    build.build(library, (*flags, PATIENT) if name == "thread" else flags)
    runtime = subprocess.check_output(["c++", f"-print-file-name={RUNTIMES[name]}"], text=True).strip()
    # Without random addresses: those of some kernels are more than TSan's shadow memory has room for.
    command = ["setarch", "-R", sys.executable, "-m", "pytest", "-q", "-x", "-s", "-p", "no:cacheprovider"]
    environ = {**os.environ, **OPTIONS[name], "LD_PRELOAD": runtime}
    return not subprocess.run([*command, f"--native-library={library}", *TESTS], env=environ, check=False).returncode


def _same_bits_on_arm() -> bool:
    """Tell whether ARM's processors, emulated by QEMU, compute the same bits as all paths on this one."""
    emulator = shutil.which("qemu-aarch64")
    if emulator is None:
        print("qemu-aarch64 is not installed: apt-get install qemu-user")
        return False
    try:
        ours, theirs = (_program(machine) for machine in (platform.machine(), ARM))
    except build.BuildError as error:
        print(error)
        return False
    printed = [
        subprocess.run(command, capture_output=True, text=True, check=False)
        for command in ([str(ours)], [emulator, str(theirs)])
    ]
    lines = [done.stdout.splitlines() for done in printed]
    for name, done in zip((platform.machine(), ARM), printed, strict=True):
        print(f"{name}: exit {done.returncode}, {len(done.stdout.splitlines())} results, {done.stderr.strip()}")
    bad = [line for line in lines[0] + lines[1] if "differs" in line or "not finite" in line]
    bad += [f"{a} here, {b} on ARM" for a, b in zip(*lines, strict=False) if a != b]
    ended = all(done.returncode == 0 for done in printed) and bool(lines[0]) and len(lines[0]) == len(lines[1])
    print("\n".join(bad[:20]) or ("the same bits" if ended else "the results are not complete"))
    return not bad and ended


def check_bits(folder: Path) -> None:
    """Check that `bits.cpp` compiles: to an object in a folder. Raises BuildError: when the compiler refuses it."""
    object_file = str(folder / "bits.o")
    build._run([*build.compiler(), *build.FLAGS, f"-I{build.SOURCES}", "-c", str(BITS), "-o", object_file])


def _program(machine: str) -> Path:
    """Compile `bits.cpp` with the native sources for a kind of processor."""
    target = FOLDER.absolute() / f"bits-{machine}"
    print(f"building {target}", flush=True)
    command = build.compiler(machine)
    os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(FOLDER.absolute() / "zig"))
    static = ("-static",) if machine == ARM else ()
    if machine == ARM:  # with a C library that links statically
        command = [part.replace(f"gnu.{build.GLIBC}", "musl") for part in command]
    flags = [flag for flag in build.FLAGS if flag != "-fvisibility=hidden"]
    objects = []
    for source in (BITS, *sorted(build.SOURCES.rglob("*.cpp"))):
        made = f"{target}.{source.parent.name}.{source.stem}.o"
        extra = build.PROCESSOR_FLAGS.get(source.stem, ()) if machine == "x86_64" else ()
        digest = f'-DLORIKEET_DIGEST="{build.digest()}"'
        build._run([*command, *flags, *extra, digest, f"-I{build.SOURCES}", "-c", str(source), "-o", made])
        objects.append(made)
    build._run([*command, *static, *objects, "-lm", "-lpthread", "-o", str(target)])
    return target


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
