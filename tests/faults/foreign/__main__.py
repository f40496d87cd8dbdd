"""`python -m tests.faults.foreign [PART ...]`: the long tests of servers of other makers, part by part, then a table.

One part runs at a time, since each of them fills a machine of two cores. Packages that a part needs besides Lorikeet
are installed into build/ before the part runs. The table has each part's counts, its duration, and the load of the
machine before it; it is stored in build/long-foreign.txt as well. Exits with 1 where a part fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gateway.bench.peers import PEERS
from tests.demo import REPOSITORY, demo_model_dir
from tests.figures import FILE_VARIABLE

TABLE = REPOSITORY / "build" / "long-foreign.txt"
BUILD_PEERS = REPOSITORY / "build" / "peers"


class Part(msgspec.Struct, frozen=True):
    """A command that fails where a promise does not hold."""

    name: str
    command: tuple[str, ...]
    needs: str = ""
    """The module that makes the environment of the part."""


def full(*tests: str) -> tuple[str, ...]:
    return ("-m", "pytest", "--full", "-s", "-q", *tests)


FOREIGN = "tests/gateway/backends/foreign"
VLLM, TRITON = "tests.gateway.agent.vllm_environment", "tests.gateway.backends.foreign.triton_environment"
PARTS = (
    Part(
        "overhead", ("-m", "gateway.bench.foreign", "--model-dir", str(demo_model_dir()), "--peers", str(BUILD_PEERS))
    ),
    Part("llamacpp", full(f"{FOREIGN}/test_llamacpp.py", "tests/gateway/agent/test_real_servers.py", "-k", "not vllm")),
    Part("vllm", full("tests/gateway/agent/test_real_servers.py", "-k", "vllm"), VLLM),
    Part("triton", full(f"{FOREIGN}/test_triton.py"), TRITON),
    Part("metering", full("tests/faults/foreign/test_metering.py")),
    Part("faults", full("tests/faults/foreign/test_faults.py")),
    Part("hostile", full("tests/faults/foreign/test_hostile_servers.py")),
    Part("explain", full("tests/gateway/pipeline/test_routes_as_explained.py")),
    Part("adapters", full("tests/faults/foreign/test_right_adapter.py")),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 where all parts hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.foreign", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(each.name for each in PARTS)}")
    parser.add_argument("--pip-args", default="", help="arguments of each `pip install`")
    args = parser.parse_args(argv)
    names = {each.name for each in PARTS}
    if unknown := sorted(set(args.parts) - names):
        parser.error(f"no part is called {', '.join(unknown)}; these are: {', '.join(sorted(names))}")
    lines: list[str] = []
    for part in PARTS:
        if args.parts and part.name not in args.parts:
            continue
        prepare(part, args.pip_args.split())
        lines += run(part)
    TABLE.write_text("\n".join([*lines, ""]))
    print("", *lines, sep="\n")
    return 1 if any(" FAILED " in line for line in lines) else 0


def prepare(part: Part, pip_args: Sequence[str]) -> None:
    """Install what a part needs. Gateways of others that cannot be installed are left out, which the part says."""
    if part.needs:
        subprocess.run([sys.executable, "-m", part.needs, *pip_args], cwd=REPOSITORY, check=True)
    if part.name == "overhead":
        BUILD_PEERS.mkdir(parents=True, exist_ok=True)
        for peer in PEERS:
            if not (BUILD_PEERS / peer.program).exists() and (peer.made_by.split()[0] != "npm" or shutil.which("npm")):
                subprocess.run(peer.made_by.format(BUILD_PEERS), shell=True, cwd=REPOSITORY, check=False)


def run(part: Part) -> list[str]:
    """Run a part; return its lines of the table."""
    print(f"\n{part.name}: {' '.join(part.command)}", flush=True)
    load, began_s = os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures"
        environ = os.environ | {FILE_VARIABLE: str(figures)}
        is_test = "pytest" in part.command
        with subprocess.Popen(
            [sys.executable, *part.command],
            cwd=REPOSITORY,
            env=environ,
            stdout=None if is_test else subprocess.PIPE,
            text=True,
        ) as running:
            found = [] if running.stdout is None else [_shown(line) for line in running.stdout]
        if figures.exists():
            found += figures.read_text().splitlines()
    seconds = time.monotonic() - began_s
    outcome = "holds" if running.returncode == 0 else f"FAILED ({running.returncode})"
    return [
        f"{part.name:<10} {outcome:<12} {seconds:6.0f} s   load {load:4.1f} before",
        *(f"    {each}" for each in found),
    ]


def _shown(line: str) -> str:
    """Print a line of a program; return it without its end."""
    print(line, end="", flush=True)
    return line.rstrip()


if __name__ == "__main__":
    sys.exit(main())
