"""`python -m tests.faults.foreign [PART ...]`: the long tests of servers of other makers, part by part, then a table.

Packages that a part needs besides Lorikeet are installed into build/ before the part runs. The table is stored in
build/long-foreign.txt as well. Exits with 1 where a part fails.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence

from gateway.bench.peers.running import PEERS
from tests.demo import REPOSITORY, demo_model_dir
from tests.parts import Part, full, parser_of, run_parts

TABLE = REPOSITORY / "build" / "long-foreign.txt"
BUILD_PEERS = REPOSITORY / "build" / "peers"

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
    """Return 0 where all parts hold.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    parser = parser_of(PARTS, "python -m tests.faults.foreign", __doc__)
    parser.add_argument("--pip-args", default="", help="arguments of each `pip install`")
    args = parser.parse_args(argv)
    return run_parts(PARTS, args.parts, TABLE, lambda part: prepare(part, args.pip_args.split()))


def prepare(part: Part, pip_args: Sequence[str]) -> None:
    """Install the programs that a part needs.

    Gateways of others that cannot be installed are left out, which the part says.
    """
    if part.needs:
        subprocess.run([sys.executable, "-m", part.needs, *pip_args], cwd=REPOSITORY, check=True)
    if part.name == "overhead":
        BUILD_PEERS.mkdir(parents=True, exist_ok=True)
        for peer in PEERS:
            if not (BUILD_PEERS / peer.program).exists() and (peer.made_by.split()[0] != "npm" or shutil.which("npm")):
                subprocess.run(peer.made_by.format(BUILD_PEERS), shell=True, cwd=REPOSITORY, check=False)


if __name__ == "__main__":
    sys.exit(main())
