"""Whether files are an adapter that this base model can serve: a stand-in without confinement and without archives."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import msgspec

from adapters.digest import canonical_digest
from adapters.errors import AdapterRejected
from adapters.peft_config import CONFIG_NAME
from adapters.peft_format import WEIGHTS_NAME, check_fit, check_rank, read_adapter
from adapters.safe_file import open_regular


class BaseShape(msgspec.Struct, frozen=True):
    targets: dict[str, tuple[int, int]]
    num_layers: int


class Bounds(msgspec.Struct, frozen=True):
    max_rank: int
    max_bytes: int


class Report(msgspec.Struct, frozen=True):
    digest: str
    rank: int
    size_bytes: int
    num_modules: int


async def inspect(path: Path, into: Path, base: BaseShape, bounds: Bounds) -> Report:
    return await asyncio.to_thread(_inspect, path, into, base, bounds)


def _inspect(path: Path, into: Path, base: BaseShape, bounds: Bounds) -> Report:
    if not path.is_dir():
        raise AdapterRejected(["it is no archive"])
    for name in (CONFIG_NAME, WEIGHTS_NAME):
        with open_regular(path / name) as reader, (into / name).open("wb") as writer:
            shutil.copyfileobj(reader, writer)
    adapter = read_adapter(into)
    check_fit(adapter, base.targets, base.num_layers)
    check_rank(adapter, bounds.max_rank)
    size = sum((into / name).stat().st_size for name in (CONFIG_NAME, WEIGHTS_NAME))
    return Report(canonical_digest(into), adapter.rank_max, size, len(adapter.modules))
