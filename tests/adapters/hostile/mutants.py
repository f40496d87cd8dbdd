"""Good adapters and archives of them, damaged at random: the same from the same seed, on every machine."""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adapters.peft_config import CONFIG_NAME
from adapters.peft_format import WEIGHTS_NAME
from tests.adapters.folders import (
    CONFIG,
    HIDDEN,
    INTERMEDIATE,
    Tensors,
    header_of,
    safetensors_bytes,
    tensor,
    tensor_name,
)
from tests.adapters.hostile import tars, zips

MAX_CHANGES = 4
# Numbers at which somebody's arithmetic ends.
EDGES = [0, 1, -1, 2, 3, 255, 256, 2**31 - 1, 2**31, 2**32, 2**53, 2**63, 2**64, 10**30]
VALUES: list[Any] = [
    *EDGES,
    *(True, False, None, 0.5, -0.0, 1e-300, 1e300, float("nan"), float("inf")),
    *("", "2", "LORA", "q_proj", ".*", "(a+)+", "../../etc/passwd", "\0", "\ud800", "é" * 300, "all-linear"),
    *([], {}, [0], [[]], [2, 8], [0, 64], {"q_proj": 2}, {"q_proj": -1}, ["q_proj"], ["k_proj", "q_proj", "up_proj"]),
]


def pair(layer: int, module: str, rank: int, size_in: int, size_out: int) -> Tensors:
    names = tensor_name(layer, module, "A"), tensor_name(layer, module, "B")
    return {names[0]: tensor(rank, size_in, seed=layer + 1), names[1]: tensor(size_out, rank, seed=layer + 2)}


ADAPTERS: list[tuple[dict[str, Any], Tensors]] = [
    (CONFIG, pair(0, "self_attn.q_proj", 2, HIDDEN, HIDDEN)),
    (
        {**CONFIG, "r": 4, "use_rslora": True, "lora_alpha": 8.5},
        {**pair(0, "mlp.up_proj", 4, HIDDEN, INTERMEDIATE), **pair(1, "mlp.down_proj", 4, INTERMEDIATE, HIDDEN)},
    ),
    (
        {**CONFIG, "rank_pattern": {"q_proj": 1}, "alpha_pattern": {"q_proj": 3}, "lora_dropout": 0.1},
        {**pair(0, "self_attn.o_proj", 2, HIDDEN, HIDDEN), **pair(1, "self_attn.q_proj", 1, HIDDEN, HIDDEN)},
    ),
]


def make(seed: int, folder: Path) -> Path:
    """Build the mutant of this seed in an empty folder; return the path to inspect."""
    draw = random.Random(seed)
    config, tensors = draw.choice(ADAPTERS)
    kind = draw.choice(list(KINDS))
    return KINDS[kind](draw, config, tensors, folder)


def files_of(config: Any, header: Any, tensors: Tensors) -> dict[str, bytes]:
    data = b"".join(data for _, _, data in tensors.values())
    return {CONFIG_NAME: json.dumps(config).encode(), WEIGHTS_NAME: safetensors_bytes(header, data)}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def write_archive(folder: Path, content: bytes) -> Path:
    return write(folder, {"archive": content}) / "archive"


def harmless(draw: random.Random, config: dict[str, Any], tensors: Tensors, folder: Path) -> Path:
    """Write a good adapter with differences that must not count.

    These are the order of tensors, metadata, options without effect, the archive around the files.
    """
    shuffled = dict(draw.sample(list(tensors.items()), len(tensors)))
    header = {"__metadata__": {"format": "pt", "note": draw.randbytes(4).hex()}, **header_of(shuffled)}
    files = files_of({**config, "inference_mode": draw.random() < 0.5, "revision": "main"}, header, shuffled)
    wrap = draw.choice([None, tar_of, zip_of])
    return write(folder, files) if wrap is None else write_archive(folder, wrap(files))


def damaged_header(draw: random.Random, config: dict[str, Any], tensors: Tensors, folder: Path) -> Path:
    return write(folder, files_of(config, changed_json(draw, header_of(tensors)), tensors))


def damaged_config(draw: random.Random, config: dict[str, Any], tensors: Tensors, folder: Path) -> Path:
    return write(folder, files_of(changed_json(draw, config), header_of(tensors), tensors))


def damaged_files(draw: random.Random, config: dict[str, Any], tensors: Tensors, folder: Path) -> Path:
    files = files_of(config, header_of(tensors), tensors)
    name = draw.choice(list(files))
    return write(folder, {**files, name: changed_bytes(draw, files[name])})


def damaged_data(draw: random.Random, config: dict[str, Any], tensors: Tensors, folder: Path) -> Path:
    """Write the files of a good adapter with bits of its weights flipped, which is most often a good adapter again."""
    files = files_of(config, header_of(tensors), tensors)
    content = bytearray(files[WEIGHTS_NAME])
    num_bytes = sum(len(data) for _, _, data in tensors.values())
    for _ in range(draw.randint(1, MAX_CHANGES)):
        content[-draw.randint(1, num_bytes)] ^= 1 << draw.randrange(8)
    return write(folder, {**files, WEIGHTS_NAME: bytes(content)})


def damaged_archive(pack: Callable[[dict[str, bytes]], bytes], after: Callable[[bytes], bytes] = bytes) -> Any:
    """Return a kind of mutant with changed bytes in its archive, before `after` compresses the archive."""

    def build(draw: random.Random, config: dict[str, Any], tensors: Tensors, folder: Path) -> Path:
        content = pack(files_of(config, header_of(tensors), tensors))
        return write_archive(folder, after(changed_bytes(draw, content)))

    return build


def tar_of(files: dict[str, bytes]) -> bytes:
    return tars.pack([tars.member(name, content) for name, content in files.items()])


def zip_of(files: dict[str, bytes]) -> bytes:
    return zips.pack([zips.member(name, content) for name, content in files.items()])


def gzipped_tar_of(files: dict[str, bytes]) -> bytes:
    return gzip.compress(tar_of(files), mtime=0)


def changed_json(draw: random.Random, value: Any) -> Any:
    """Return a copy with a few values replaced, dropped, moved or nested."""
    value = json.loads(json.dumps(value))
    for _ in range(draw.randint(1, MAX_CHANGES)):
        container, key = draw.choice(list(places(value)))
        change = draw.randrange(5)
        if change == 0:
            del container[key]
        elif change == 1 and isinstance(container, dict):
            container[draw.choice(["r", "use_dora", "bias", "x", "", "rank_pattern", "dtype"])] = container.pop(key)
        elif change == 2:
            container[key] = [container[key]] * draw.choice([1, 2, 1000])
        else:
            container[key] = copy.deepcopy(draw.choice(VALUES))  # later changes may go into it
        if not value:
            break
    return value


def places(value: Any) -> Any:
    """Yield the position, as (container, key), of every value within a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield value, key
        if isinstance(inner, dict | list):
            yield from places(inner)


def changed_bytes(draw: random.Random, content: bytes) -> bytes:
    mutant = bytearray(content)
    for _ in range(draw.randint(1, MAX_CHANGES)):
        at, length = draw.randrange(len(mutant) + 1), draw.randint(1, 16)
        part = bytes(mutant[at : at + length])
        edge = (draw.choice(EDGES) & (2**64 - 1)).to_bytes(8, "little")[: draw.choice([1, 2, 4, 8])]
        new = draw.choice([draw.randbytes(length), b"", part * 2, edge, bytes(len(part)), b"9" * length])
        mutant[at : at + length] = new
    return bytes(mutant[: draw.randrange(len(mutant) + 1)]) if draw.random() < 0.1 else bytes(mutant)


KINDS: dict[str, Callable[[random.Random, dict[str, Any], Tensors, Path], Path]] = {
    "harmless": harmless,
    "header": damaged_header,
    "config": damaged_config,
    "files": damaged_files,
    "data": damaged_data,
    "tar": damaged_archive(tar_of),
    "tar, then gzipped": damaged_archive(tar_of, gzip.compress),
    "tar.gz": damaged_archive(gzipped_tar_of),
    "zip": damaged_archive(zip_of),
}
