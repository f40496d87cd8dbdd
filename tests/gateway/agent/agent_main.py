"""An agent whose engines are fake ones, as the `main` of a process of its own.

The agent's settings come from the environment, as those of `lorikeet agent`. A file in a model's folder makes the
model's engines fail: with `broken` they end at once, print the file's text, and say by their exit code that another try
is useless; with `crash` they end at once with another code; with `mute` they run and never answer.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import msgspec

from engine.config import EngineConfig
from gateway.agent.run import run_agent
from gateway.settings import load_settings

PRODUCED_VARIABLE = "PRODUCED"
"""The environment variable with the path of the file to which engines write tokens, if they are to."""


def fake_engine(config: EngineConfig) -> list[str]:
    """Return the command of a fake engine, or of a program that fails as the model's folder says.

    The configuration that a real engine would get is written to the model's folder, as `<socket>.json`.
    """
    name = config.endpoint.rpartition("/")[2]
    (Path(config.model_dir) / f"{name}.json").write_bytes(msgspec.json.encode(config))
    for name, code in (("broken", os.EX_CONFIG), ("crash", 3)):
        file = Path(config.model_dir) / name
        if file.exists():
            script = f"import sys; sys.stderr.write('engine: ' + {file.read_text()!r} + '\\n'); sys.exit({code})"
            return [sys.executable, "-c", script]
    if (Path(config.model_dir) / "mute").exists():
        return [sys.executable, "-c", "import time; time.sleep(3600)", "engine.fake", config.endpoint, config.link_dir]
    flags = ["--endpoint", config.endpoint, "--model-dir", config.model_dir]
    flags += ["--unattended-s", str(config.unattended_s), "--tokens-per-s", "200", "--link-dir", config.link_dir]
    if produced := os.environ.get(PRODUCED_VARIABLE):
        flags += ["--produced", produced]
    return [sys.executable, "-m", "engine.fake", *flags]


def main(*flags: str) -> int:
    """Run an agent until it is told to end, and return the exit code. flags: as those of `lorikeet agent`."""
    logging.basicConfig(level=logging.INFO)
    settings = load_settings({name: value for name, value in os.environ.items() if name.startswith("LORIKEET_")})
    return run_agent(
        settings,
        os.environ["DATABASE_URL"],
        command=fake_engine,
        stops_engines="--stop-engines" in flags,
        drains_engines="--drain-engines" in flags,
        gives_up="--give-up" in flags,
    )
