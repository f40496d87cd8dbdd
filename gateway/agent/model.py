"""Prepares the folder of the base model.

Preparing a model needs torch, which the gateway never imports: a process of its own does it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from gateway.settings import Settings
from gateway.support.accounts import Account, as_root, environ_of
from gateway.support.model_folders import prepared_folder
from gateway.support.process import die_with_parent

_PREPARE = [sys.executable, "-m", "engine.prepare"]


class ModelNotPrepared(RuntimeError):
    """The error for a base model that cannot be used; the message is the preparation's own."""


def prepare_model(
    settings: Settings, report: Callable[[str], None] = lambda line: None, account: Account | None = None
) -> Path:
    """Return the folder of settings.model, which is prepared first if it is not there: that takes a minute.

    report: gets the progress, line by line. account: the user as which the model is prepared; None for the user of this
    process.

    Raises ModelNotPrepared: when the preparation fails; the error has its last line.
    """
    with as_root():
        process = subprocess.Popen(
            preparation_command(settings),
            env=os.environ | environ_of(account, settings.home_dir),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=die_with_parent(signal.SIGKILL),
            **({} if account is None else account.popen_arguments()),
        )
    assert process.stdout is not None and process.stderr is not None
    last = ""
    try:
        for line in process.stderr:
            last = line.rstrip()
            if last and not last.startswith("error: "):
                report(last)
        folder = process.stdout.read().strip()
        returncode = process.wait()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
    if returncode != 0:
        raise ModelNotPrepared(f"LORIKEET_MODEL={settings.model}: {preparation_failure(last, returncode)}")
    return Path(folder)


def preparation_command(settings: Settings, *, converts: bool = False) -> list[str]:
    """Return the command that prepares settings.model and prints its folder; progress and reasons go to its stderr.

    converts: a GGUF file's weights become safetensors, which servers of other makers read, in a folder of their own.
    """
    out = prepared_folder(settings, converts=converts)
    return [*_PREPARE, settings.model, *(["--convert"] if converts else []), "--out", str(out)]


def preparation_failure(last_line: str, returncode: int) -> str:
    """Return why a preparation failed.

    last_line: the last line of the preparation's stderr. returncode: the exit status of the preparation; negative: the
    signal that ended it.
    """
    return last_line.removeprefix("error: ") or f"the preparation ended with exit code {returncode}"
