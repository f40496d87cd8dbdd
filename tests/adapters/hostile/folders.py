"""Hostile cases: folders that hold something else than an adapter's two files."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

from adapters.peft_config import CONFIG_NAME
from adapters.peft_format import WEIGHTS_NAME
from tests.adapters.hostile.case import Case, folder_of, good_files


def without(name: str, reason: str, replace: Callable[[Path], object] = lambda path: None) -> Case:
    """Return a case of the good folder with one file removed, or replaced by what `replace` makes at its path."""

    def build(folder: Path) -> Path:
        folder_of({other: content for other, content in good_files().items() if other != name})(folder)
        replace(folder / name)
        return folder

    return Case(build, reason)


def case_with_file(name: str, reason: str) -> Case:
    return Case(folder_of({**good_files(), name: b"something"}), reason)


def listen_on_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's address is short
        server.bind(path.name)
        os.chdir(here)


def linked_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def make_linked(path: Path) -> None:
    elsewhere = path.parent.parent / f"elsewhere-{path.parent.name}"
    elsewhere.write_bytes(good_files()[path.name])
    path.symlink_to(elsewhere)


def make_crowded(folder: Path) -> Path:
    folder_of(good_files())(folder)
    for number in range(1100):
        (folder / f"{number}.txt").touch()
    return folder


CASES: dict[str, Case] = {
    "nothing": Case(lambda folder: folder, "adapter_config.json is missing"),
    "no weights": without(WEIGHTS_NAME, "adapter_model.safetensors is missing"),
    "no configuration": without(CONFIG_NAME, "adapter_config.json is missing"),
    "weights are a pipe": without(WEIGHTS_NAME, "adapter_model.safetensors is not a regular file", os.mkfifo),
    "configuration is a pipe": without(CONFIG_NAME, "adapter_config.json is not a regular file", os.mkfifo),
    "weights are a folder": without(WEIGHTS_NAME, "adapter_model.safetensors is missing", Path.mkdir),
    "weights are a socket": without(WEIGHTS_NAME, "adapter_model.safetensors cannot be read", listen_on_socket),
    "weights are a link": without(WEIGHTS_NAME, "is a symbolic link", make_linked),
    "weights are a link to a device": without(
        WEIGHTS_NAME, "is a symbolic link", lambda path: path.symlink_to("/dev/zero")
    ),
    "weights are a link to themselves": without(WEIGHTS_NAME, "is a symbolic link", linked_to_itself),
    "configuration is a link to a secret": without(
        CONFIG_NAME, "adapter_config.json is a symbolic link", lambda path: path.symlink_to("/etc/passwd")
    ),
    "weights are a pickle by name": without(
        WEIGHTS_NAME,
        "'adapter_model.bin' is a pickle by its name",
        lambda path: path.with_name("adapter_model.bin").write_bytes(b"\x80\x04"),
    ),
    "an optimizer beside": case_with_file("optimizer.pt", "'optimizer.pt' is a pickle by its name"),
    "an archive beside": case_with_file("more.zip", "is an archive within the archive"),
    "almost the configuration": case_with_file(
        "ADAPTER_CONFIG.JSON", "is named almost like one of the adapter's files"
    ),
    "a name with a newline": case_with_file("adapter\nconfig", "a name with control or invisible characters"),
    "a name that is no text": Case(
        lambda folder: folder_of({**good_files(), os.fsdecode(b"\xff\xfe"): b""})(folder), "control or invisible"
    ),
    "a thousand files": Case(make_crowded, "there are more than 1000 members"),
}
