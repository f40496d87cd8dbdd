"""A case of a hostile file, and the base model that the file is sent to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from adapters.inspection import BaseShape, Bounds
from adapters.peft_config import CONFIG_NAME
from adapters.peft_format import WEIGHTS_NAME
from tests.adapters.folders import CONFIG, NUM_LAYERS, TARGETS, good_tensors, header_of, safetensors_bytes

BASE = BaseShape(TARGETS, NUM_LAYERS)
BOUNDS = Bounds(max_rank=64, max_bytes=24 << 20)


class Case(NamedTuple):
    """An adapter to refuse."""

    build: Callable[[Path], Path]
    """Make the adapter in an empty folder, and return the path to inspect."""
    reason: str
    """A text that the refusal must contain."""


def config_bytes(**changes: Any) -> bytes:
    return json.dumps({**CONFIG, **changes}).encode()


def weights_bytes() -> bytes:
    tensors = good_tensors()
    return safetensors_bytes(header_of(tensors), b"".join(data for _, _, data in tensors.values()))


def good_files() -> dict[str, bytes]:
    return {CONFIG_NAME: config_bytes(), WEIGHTS_NAME: weights_bytes()}


def folder_of(files: Mapping[str, bytes]) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return folder

    return build


def file_of(content: bytes | Callable[[], bytes], name: str = "archive") -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content() if callable(content) else content)
        return path

    return build


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
