"""Make an environment with NVIDIA's Triton in build/triton-env: `python -m FILE` of this file.

PyTriton's wheel brings the whole server, which runs without a GPU.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from tests.demo import REPOSITORY

VERSION = "0.7.0"
FOLDER = REPOSITORY / "build" / "triton-env"
MADE = FOLDER / ".made"
MODELS = Path(__file__).parent / "triton"


def packages() -> Path:
    """Return the folder of the environment's Python packages."""
    (found,) = FOLDER.glob("lib/python3.*/site-packages")
    return found


def command(port: int) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment variables of a server with the models beside this file."""
    server = packages() / "pytriton" / "tritonserver"
    flags = ["--model-repository", str(MODELS), "--backend-directory", str(server / "backends")]
    flags += ["--http-port", str(port), "--http-address", "127.0.0.1", "--allow-grpc", "false"]
    flags += ["--allow-metrics", "false", "--disable-auto-complete-config"]
    environ = os.environ | {
        "PATH": f"{FOLDER / 'bin'}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(packages() / "nvidia_pytriton.libs"),
        "PYTHONPATH": str(packages()),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return [str(server / "bin" / "tritonserver"), *flags], environ


def main() -> None:
    """Make the environment, unless it is complete already."""
    if MADE.exists() and MADE.read_text() == VERSION:
        return
    venv.create(FOLDER, with_pip=True, clear=True)
    pip = [str(FOLDER / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", *sys.argv[1:], f"nvidia-pytriton=={VERSION}"], check=True)
    server = packages() / "pytriton" / "tritonserver"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = "triton_python_backend_stub"
    shutil.copy(server / "python_backend_stubs" / python / stub, server / "backends" / "python" / stub)
    MADE.write_text(VERSION)


if __name__ == "__main__":
    main()
