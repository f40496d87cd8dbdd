"""A whole installation as its operator runs it: `lorikeet serve` in its own process, on its own data folder."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.demo import demo_model_dir
from tests.installation.processes import ChildProcess, free_port
from tests.installation.waiting import is_ready, wait_ready
from tests.patience import PATIENCE_S

BASE = "smollm2-135m-instruct"


class Installation:
    """An installation whose `serve` may be started and stopped again and again; the data folder stays.

    flags: the flags of `serve`.
    """

    def __init__(self, data_dir: Path, flags: Sequence[str] = ()) -> None:
        self.data_dir = data_dir
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        metrics_address = f"127.0.0.1:{free_port()}"
        self.metrics_url = f"http://{metrics_address}/metrics"
        data_dir.mkdir(parents=True, exist_ok=True)
        data_dir.chmod(0o711)
        (data_dir / "models").symlink_to(demo_model_dir().parent)  # prepared once for all runs
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("LORIKEET_", "OPENAI_"))}
        self.env |= {"LORIKEET_DATA_DIR": str(data_dir), "LORIKEET_PORT": str(self.port)}
        self.env["LORIKEET_METRICS_LISTEN"] = metrics_address
        # On a machine that others use, a model that computes may need minutes for what runs when it is stopped.
        self.env |= {"LORIKEET_DRAIN_SECONDS": str(PATIENCE_S)}
        command = [sys.executable, "-m", "gateway.cli", "serve", *flags]
        self._serve = ChildProcess(command, log=data_dir / "serve.out", env=self.env)

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """The process of `serve`, while it runs."""
        return self._serve.popen

    def start(self) -> float:
        """Start the server and return the seconds until it is ready."""
        started_s = time.monotonic()
        self._serve.start()
        wait_ready(self.url, check=self._serve.check, log=self._serve.output, pause_s=0.1)
        return time.monotonic() - started_s

    def is_ready(self) -> bool:
        return is_ready(self.url)

    def stop(self) -> int:
        """Send SIGTERM; return the exit code once `serve` has drained."""
        return self._serve.terminate()

    def kill(self) -> None:
        """Kill `serve`, so that nothing is ended in order."""
        self._serve.kill()

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gateway.cli", *arguments]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    @property
    def keys(self) -> dict[str, str]:
        """The values of demo.env, as a shell that reads it sees them."""
        lines = (self.data_dir / "demo.env").read_text().splitlines()
        return dict(line.removeprefix("export ").split("=", 1) for line in lines if "=" in line)

    def engine_pid(self) -> int:
        """Return the pid of the engine that has this folder's adapter store in its settings."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    command = (entry / "cmdline").read_bytes().decode().split("\0")
                except OSError:
                    continue
                if "engine" in command and any(f'"{self.data_dir}/adapters"' in part for part in command):
                    return int(entry.name)
        raise AssertionError("no engine process")

    def processes(self) -> list[str]:
        """Return the command lines of all processes that still name this data folder, or run in it."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    here = str((entry / "cwd").readlink())
                except OSError:
                    continue
                if str(self.data_dir) in command or here.startswith(str(self.data_dir)):
                    found.append(command)
        return found
