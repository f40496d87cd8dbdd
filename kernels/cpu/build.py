"""Compile `native/` to one shared object, without anything of Python or PyTorch in it.

The compiler is the `ziglang` package, which wheels are built with, or the system's where that one is not installed.
This module imports nothing but the standard library: the wheel's build runs it before anything else is there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "native"
LIBRARY = Path(__file__).parent / "_native.so"
GLIBC = "2.17"
"""The oldest system that the library loads on: the one of the wheels' tag, manylinux_2_17."""

FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-fno-exceptions",
         "-fno-rtti", "-Wall", "-Wextra")  # fmt: skip
AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
PROCESSOR_FLAGS = {
    "avx2": AVX2,
    "avx_vnni": (*AVX2, "-mavxvnni"),
    "avx512": AVX512,
    "avx512_vnni": (*AVX512, "-mavx512vnni"),
}
"""Flags of the files, by their names, that hold code for some processors alone."""


class BuildError(Exception):
    """The error for a library that cannot be built here; the message says why."""


def digest() -> str:
    """Return the SHA-256 of all sources, which the library tells of itself."""
    found = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        found.update(path.relative_to(SOURCES).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def compiler(machine: str = "") -> list[str]:
    """Return the command of a C++ compiler.

    machine: another kind of processor than this one's, for which `ziglang` alone compiles.

    Raises BuildError: when there is none.
    """
    if importlib.util.find_spec("ziglang") is not None:
        target = f"{machine or platform.machine()}-linux-gnu.{GLIBC}"
        return [sys.executable, "-m", "ziglang", "c++", "-target", target, "-mcpu=baseline"]
    found = os.environ.get("CXX") or shutil.which("c++")
    if machine not in ("", platform.machine()):
        raise BuildError(f"the ziglang package, which compiles for {machine}, is not there")
    if not found:
        raise BuildError("there is neither the ziglang package nor a C++ compiler")
    return [found]


def build(target: Path = LIBRARY, extra: Sequence[str] = ()) -> str:
    """Compile the library, put it to target and return the tag of the systems that load it. extra: further flags.

    Raises BuildError: when this is not Linux, there is no compiler, or it fails.
    """
    if sys.platform != "linux":
        raise BuildError(f"the library is for Linux, not for {sys.platform}")
    command = compiler()
    is_portable = "ziglang" in command
    with tempfile.TemporaryDirectory() as folder:
        if is_portable:
            os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", f"{folder}/zig")
        defines = f'-DLORIKEET_DIGEST="{digest()}"'

        def compile_one(source: Path) -> str:
            made = f"{folder}/{source.parent.name}.{source.stem}.o"
            flags = PROCESSOR_FLAGS.get(source.stem, ()) if platform.machine() == "x86_64" else ()
            _run([*command, *FLAGS, *flags, *extra, defines, "-c", str(source), "-o", made])
            return made

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_one, sorted(SOURCES.rglob("*.cpp"))))
        without_library = ("-nostdlib++",) if is_portable else ()  # zig would compile its own, which nothing here needs
        made = f"{folder}/library.so"
        _run([*command, "-shared", *without_library, "-s", *extra, *objects, "-lm", "-lpthread", "-o", made])
        # A process that has the old file open keeps it.
        beside = target.with_name(f"{target.name}.{os.getpid()}")
        shutil.copyfile(made, beside)
        beside.replace(target)
    return f"{f'manylinux_{GLIBC}'.replace('.', '_') if is_portable else 'linux'}_{platform.machine()}"


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stderr[-4000:]}")


if __name__ == "__main__":
    build()
