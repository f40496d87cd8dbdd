"""The fake engine as a child process."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.installation.processes import ChildProcess


class Engine(ChildProcess):
    """A process of `engine.fake` on an endpoint.

    flags: more of its command line.
    """

    def __init__(self, endpoint: str, model_dir: Path, *flags: str, log: Path | None = None) -> None:
        command = [sys.executable, "-m", "engine.fake", "--endpoint", endpoint, "--model-dir", str(model_dir), *flags]
        super().__init__(command, log=log)

    def restart(self) -> None:
        self.kill()
        self.start()

    def stop(self) -> None:
        """End the engine; the method has the name that engines in threads use."""
        self.kill()


class FakeEngine(Engine):
    """A fake engine that is started when it is created."""

    def __init__(self, endpoint: str, model_dir: Path, *flags: str) -> None:
        super().__init__(endpoint, model_dir, *flags)
        self.start()
