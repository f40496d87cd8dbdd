"""The code of this version, of the one before and of one of tomorrow, each in a folder of its own, with the fake engine
in place of the real one.

Knows nothing of processes.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Protocol

import pytest

from engine.version import VERSION
from tests.documents import REPOSITORY

ROOMS = ("gateway", "engine", "kernels", "adapters", "admin_ui")
PREVIOUS = REPOSITORY / "deploy/previous.txt"
OF_TOMORROW = "0999_of_tomorrow"
NEXT_VERSION = re.sub(r"^(\d+)\.(\d+).*", lambda found: f"{found[1]}.{int(found[2]) + 1}.0", VERSION)


class MakeTree(Protocol):
    """A function that writes the code of one version into a new folder, and returns the folder."""

    __name__: str

    def __call__(self, folder: Path, tokens_per_s: float) -> Path: ...


_FAKE_ENGINE = '''
"""The fake engine, with the settings that an agent gives to a real one."""
import argparse
import logging

from engine.config import EngineConfig
from engine.config.text import read_flags
from engine.fake import arguments, fake_token, serve

logging.basicConfig(level=logging.INFO)
config = read_flags(argparse.ArgumentParser(), EngineConfig)
flags = ["--endpoint", config.endpoint, "--model-dir", config.model_dir, "--link-dir", config.link_dir]
flags += ["--unattended-s", str(config.unattended_s), "--tokens-per-s", "{tokens_per_s}", "--max-num-seqs", "256"]
serve(arguments().parse_args(flags), fake_token)
'''

_MIGRATION = """
ALTER TABLE ledger ADD COLUMN of_tomorrow text DEFAULT 'unset';
ALTER TABLE journals ADD COLUMN of_tomorrow integer NOT NULL DEFAULT 1;
ALTER TABLE replicas ADD COLUMN of_tomorrow jsonb;
ALTER TABLE hosts ADD COLUMN of_tomorrow text;
ALTER TABLE pools ADD COLUMN of_tomorrow boolean NOT NULL DEFAULT true;
ALTER TABLE api_keys ADD COLUMN of_tomorrow text;
CREATE TABLE of_tomorrow (id text PRIMARY KEY);
"""

_MESSAGES = (
    "Hello", "Submit", "Abort", "AckUsage", "Goodbye", "Heartbeat",
    "Welcome", "StepOutputs", "Delta", "Usage", "Final", "EngineLimits", "EngineStats", "UnackedUsage", "UsageRecord",
)  # fmt: skip
"""The names of the protocol's structs that may get new fields."""


def previous_tree(folder: Path, tokens_per_s: float) -> Path:
    """Return a folder with the code of the commit that deploy/previous.txt names; skip where this clone has none."""
    commit = PREVIOUS.read_text().split()[0]
    command = ["git", "archive", "--format=tar", commit, *ROOMS]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"this clone lacks {commit}, of deploy/previous.txt: {done.stderr.decode()[-200:]}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return _with_fake_engine(folder, tokens_per_s)


def present_tree(folder: Path, tokens_per_s: float) -> Path:
    """Return a folder with the code of this checkout, compiled as far as it is compiled here."""
    for room in ROOMS:
        ignored = shutil.ignore_patterns("screenshots", "native", "*.pyc.*")  # the last: half written ones
        shutil.copytree(REPOSITORY / room, folder / room, ignore=ignored)
    return _with_fake_engine(folder, tokens_per_s)


def next_tree(folder: Path, tokens_per_s: float) -> Path:
    """Return a folder with this code changed into the next version's.

    The version has one more migration, and one more minor of the protocol, with new fields in all that gateways and
    engines send each other.

    Raises AssertionError: when the code is not as it was when this was written.
    """
    present_tree(folder, tokens_per_s)
    (folder / f"gateway/db/migrations/{OF_TOMORROW}.sql").write_text(_MIGRATION)
    _replace(folder / "engine/version.py", r'VERSION = ".*"', f'VERSION = "{NEXT_VERSION}"')
    path = folder / "engine/protocol.py"
    _replace(path, r"PROTOCOL_MINOR = (\d+)", lambda found: f"PROTOCOL_MINOR = {int(found[1]) + 1}")
    for name in _MESSAGES:
        # A default of its own kind, which is sent also where defaults are left out.
        field = "    of_tomorrow: list[int] = msgspec.field(default_factory=lambda: [1])\n"
        _replace(path, rf"^(class {name}\(.*?\n)(\n\n(?=\S))", lambda found, field=field: found[1] + field + found[2])
    # A request's field is not sent unless it is used.
    _replace(path, r"(    batch: BatchTerms \| None = None\n)", r"\1    of_tomorrow: int = 0\n")
    return folder


def _with_fake_engine(folder: Path, tokens_per_s: float) -> Path:
    (folder / "engine/__main__.py").write_text(_FAKE_ENGINE.replace("{tokens_per_s}", str(tokens_per_s)))
    return folder


def _replace(path: Path, pattern: str, by: object) -> None:
    text, num = re.subn(pattern, by, path.read_text(), count=1, flags=re.MULTILINE | re.DOTALL)  # type: ignore[call-overload]
    assert num == 1, f"{path} has no {pattern}"
    path.write_text(text)
