"""A good adapter comes through in whatever form it is sent, is described exactly, and costs its caller nothing."""

from __future__ import annotations

import asyncio
import io
import json
import math
import os
import tarfile
import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.digest import canonical_digest
from adapters.errors import AdapterRejected
from adapters.inspection import BaseShape, Bounds, ModuleReport, Report, inspect
from adapters.peft_config import CONFIG_NAME
from adapters.peft_format import FILE_NAMES, WEIGHTS_NAME
from adapters.sandbox.confined import Limits
from adapters.sandbox.run import LimitExceeded
from tests.adapters.folders import CONFIG, HIDDEN, Tensors, good_tensors, tensor, tensor_name, write_adapter
from tests.adapters.hostile.case import BASE, BOUNDS, good_files, names_in
from tests.adapters.hostile.forks import Forks
from tests.adapters.memory import peak_bytes

MIB = 1 << 20
PARENT_MAY_GROW_BYTES = 8 * MIB


def make_folder(root: Path) -> Path:
    return write_adapter(root / "adapter")


def make_tar(root: Path, mode: str = "w", prefix: str = "", beside: Sequence[str] = ()) -> Path:
    path = root / "archive"
    with tarfile.open(path, mode) as archive:
        for name in beside:
            archive.addfile(tarfile.TarInfo(name))
        for name, content in good_files().items():
            info = tarfile.TarInfo(prefix + name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def make_zip(root: Path, prefix: str = "", beside: Sequence[str] = (), compression: int = zipfile.ZIP_DEFLATED) -> Path:
    path = root / "archive"
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name in beside:
            archive.writestr(name, b"")
        for name, content in good_files().items():
            archive.writestr(prefix + name, content)
    return path


BESIDE = ["README.md", "tokenizer.json", "__MACOSX/._adapter_config.json", "samples/é.txt"]
FORMS: dict[str, tuple[Any, list[str]]] = {
    "folder": (make_folder, []),
    "tar": (make_tar, []),
    "tar of a folder": (lambda root: make_tar(root, prefix="my-adapter/"), []),
    "tar of .": (lambda root: make_tar(root, prefix="./"), []),
    "tar.gz and more": (lambda root: make_tar(root, "w:gz", "my-adapter/", BESIDE), BESIDE),
    "zip and more": (lambda root: make_zip(root, beside=BESIDE), BESIDE),
    "zip of a folder, stored": (lambda root: make_zip(root, "x/", compression=zipfile.ZIP_STORED), []),
}


@pytest.mark.parametrize("form", FORMS)
async def test_every_form_of_the_same_adapter_is_taken_alike(
    form: str, forks: Forks, tmp_path: Path, into: Path
) -> None:
    make, ignored = FORMS[form]
    report = await inspect(make(tmp_path), into, BASE, BOUNDS, forks)
    assert report.digest == canonical_digest(write_adapter(tmp_path / "reference"))
    assert report.ignored == ignored
    assert {name: (into / name).read_bytes() for name in names_in(into)} == good_files()
    assert {(into / name).stat().st_mode & 0o777 for name in FILE_NAMES} == {0o600}


async def test_the_report_says_what_is_adapted_how_and_what_is_not(forks: Forks, tmp_path: Path, into: Path) -> None:
    a, b = np.linspace(-3, 2, 3 * HIDDEN), np.linspace(1, 5, 2 * HIDDEN)
    tensors: Tensors = {
        tensor_name(1, "self_attn.q_proj", "A"): ("F32", (3, HIDDEN), a.astype("<f4").tobytes()),
        tensor_name(1, "self_attn.q_proj", "B"): tensor(HIDDEN, 3, seed=2),
        tensor_name(0, "self_attn.o_proj", "A"): tensor(2, HIDDEN, seed=1),
        tensor_name(0, "self_attn.o_proj", "B"): ("F16", (HIDDEN, 2), b.astype("<f2").tobytes()),
    }
    config = {**CONFIG, "rank_pattern": {"q_proj": 3}, "use_rslora": True}
    source = write_adapter(tmp_path / "adapter", config, tensors)
    report = await inspect(source, into, BASE, BOUNDS, forks)
    modules = [
        ModuleReport(0, "o_proj", 2, 4 / math.sqrt(2), "F32/F16", norm_of(tensor(2, HIDDEN, seed=1)), norm(b, "<f2")),
        ModuleReport(1, "q_proj", 3, 4 / math.sqrt(3), "F32", norm(a, "<f4"), norm_of(tensor(HIDDEN, 3, seed=2))),
    ]
    for found, expected in zip(report.modules, modules, strict=True):
        assert found.norm_a == pytest.approx(expected.norm_a, rel=1e-12)
        assert found.norm_b == pytest.approx(expected.norm_b, rel=1e-12)
    assert report == Report(
        digest=canonical_digest(source),
        rank=3,
        size_bytes=sum((source / name).stat().st_size for name in FILE_NAMES),
        num_modules=2,
        num_parameters=2 * 2 * HIDDEN + 2 * 3 * HIDDEN,
        modules=report.modules,
        unadapted={
            "q_proj": [0],
            "o_proj": [1],
            **{name: [0, 1] for name in ("k_proj", "v_proj", "gate_proj", "up_proj", "down_proj")},
        },
    )


def norm(values: Any, dtype: str) -> float:
    return float(np.linalg.norm(values.astype(dtype).astype(np.float64)))


def norm_of(of: tuple[str, tuple[int, ...], bytes]) -> float:
    return norm(np.frombuffer(of[2], "<f4"), "<f4")


async def test_all_that_does_not_fit_is_listed_at_once(forks: Forks, tmp_path: Path, into: Path) -> None:
    tensors: Tensors = {
        tensor_name(0, "self_attn.q_proj", "A"): tensor(2, HIDDEN + 1),
        tensor_name(0, "self_attn.q_proj", "B"): tensor(HIDDEN, 2),
        tensor_name(7, "self_attn.v_proj", "A"): tensor(2, HIDDEN),
        tensor_name(7, "self_attn.v_proj", "B"): tensor(HIDDEN, 2),
    }
    source = write_adapter(tmp_path / "adapter", {**CONFIG, "lora_alpha": -1}, tensors)
    with pytest.raises(AdapterRejected) as refusal:
        await inspect(source, into, BASE, Bounds(max_rank=1, max_bytes=MIB), forks)
    assert refusal.value.reasons == [
        "layer 0 q_proj: made for (in, out) = (9, 8), the base model has (8, 8)",
        "layer 7 v_proj: the base model has 2 layers",
        "the adapter's rank is 2, above LORIKEET_MAX_ADAPTER_RANK, which is 1",
        "layer 0 q_proj: lora_alpha or alpha_pattern scales it by -0.5; it must be above zero",
        "layer 7 v_proj: lora_alpha or alpha_pattern scales it by -0.5; it must be above zero",
    ]


async def test_an_adapter_larger_than_its_owner_may_have_is_refused(forks: Forks, tmp_path: Path, into: Path) -> None:
    source = make_folder(tmp_path)
    size_bytes = sum((source / name).stat().st_size for name in FILE_NAMES)
    report = await inspect(source, into, BASE, Bounds(max_rank=2, max_bytes=size_bytes), forks)
    assert report.size_bytes == size_bytes
    for name in FILE_NAMES:
        (into / name).unlink()
    with pytest.raises(AdapterRejected, match=f"unpacked, {size_bytes - 1} are allowed"):
        await inspect(source, into, BASE, Bounds(max_rank=2, max_bytes=size_bytes - 1), forks)
    archive = tmp_path / "large"
    archive.touch()
    os.truncate(archive, 100 * MIB)
    with pytest.raises(AdapterRejected, match=f"the archive has {100 * MIB} bytes; {MIB} are allowed"):
        await inspect(archive, into, BASE, Bounds(max_rank=2, max_bytes=MIB), forks)


async def test_a_file_that_is_in_the_folder_already_is_not_touched(tmp_path: Path, into: Path) -> None:
    (into / WEIGHTS_NAME).write_text("kept")
    with pytest.raises(FileExistsError):
        await inspect(make_folder(tmp_path), into, BASE, BOUNDS)
    assert names_in(into) == [WEIGHTS_NAME]
    assert (into / WEIGHTS_NAME).read_text() == "kept"


async def test_an_inspection_that_exceeds_its_limits_is_a_refusal_that_says_so(tmp_path: Path, into: Path) -> None:
    async def run(module: str, argument: bytes, descriptors: Sequence[int], limits: Limits) -> bytes:
        assert names_in(into), "files were there to write to"
        raise LimitExceeded("it took more than 5 s of processor time")

    with pytest.raises(AdapterRejected, match="the inspection was broken off: it took more than 5 s"):
        await inspect(make_folder(tmp_path), into, BASE, BOUNDS, run)
    assert names_in(into) == []


async def test_the_parent_does_not_grow_with_the_file(tmp_path: Path, into: Path) -> None:
    """The file has 64 MiB of weights, mostly holes."""
    size, rank = 128 * 1024, 64
    source = tmp_path / "adapter"
    source.mkdir()
    (source / CONFIG_NAME).write_text(json.dumps({**CONFIG, "r": rank}))
    num_bytes = size * rank * 4
    names = [tensor_name(0, "self_attn.q_proj", side) for side in "AB"]
    shapes = [[rank, size], [size, rank]]
    header = json.dumps(
        {
            name: {"dtype": "F32", "shape": shape, "data_offsets": [at * num_bytes, (at + 1) * num_bytes]}
            for at, (name, shape) in enumerate(zip(names, shapes, strict=True))
        }
    ).encode()
    with (source / WEIGHTS_NAME).open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for at in (0, num_bytes):
            file.seek(8 + len(header) + at)
            file.write(np.float32(1).tobytes())
        file.truncate(8 + len(header) + 2 * num_bytes)
    before = peak_bytes(reset=True)
    report = await inspect(source, into, BaseShape({"q_proj": (size, size)}, 1), Bounds(rank, 100 * MIB))
    assert report.num_parameters == 2 * size * rank
    assert peak_bytes() - before < PARENT_MAY_GROW_BYTES


async def test_files_that_change_while_they_are_read_are_never_half_taken(
    forks: Forks, tmp_path: Path, into: Path
) -> None:
    """The stored content is the content that was judged, whatever the folder held at any time."""
    source = make_folder(tmp_path)
    contents = [
        write_adapter(tmp_path / f"{seed}", tensors=other_tensors(seed)).joinpath(WEIGHTS_NAME).read_bytes()
        for seed in range(2)
    ]
    contents += [contents[0][:100], b""]
    ends = threading.Event()

    def swap() -> None:
        while not ends.is_set():
            for number, content in enumerate(contents):
                if number % 2:
                    (source / WEIGHTS_NAME).write_bytes(content)
                else:
                    (tmp_path / "next").write_bytes(content)
                    (tmp_path / "next").replace(source / WEIGHTS_NAME)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(20):
            try:
                report = await inspect(source, into, BASE, BOUNDS, forks)
            except AdapterRejected as refusal:
                assert "adapter_model.safetensors" in str(refusal)
                assert names_in(into) == []
            else:
                assert canonical_digest(into) == report.digest
                for name in FILE_NAMES:
                    (into / name).unlink()
    finally:
        ends.set()
        swapper.join()


def other_tensors(seed: int) -> Tensors:
    a, b = good_tensors()
    return {a: tensor(2, HIDDEN, seed=seed + 1), b: tensor(HIDDEN, 2, seed=seed + 1)}


async def test_inspections_run_beside_each_other(tmp_path: Path) -> None:
    source = make_folder(tmp_path)
    folders = [tmp_path / f"into-{number}" for number in range(4)]
    for path in folders:
        path.mkdir()
    reports = await asyncio.gather(*(inspect(source, path, BASE, BOUNDS) for path in folders))
    assert len({report.digest for report in reports}) == 1


async def test_a_full_disk_is_no_fault_of_the_adapter(forks: Forks, tmp_path: Path, into: Path) -> None:
    async def on_a_full_disk(module: str, argument: bytes, descriptors: Sequence[int], limits: Limits) -> bytes:
        for target in descriptors[-len(FILE_NAMES) :]:
            full = os.open("/dev/full", os.O_RDWR)
            os.dup2(full, target)
            os.close(full)
        return await forks(module, argument, descriptors, limits)

    with pytest.raises(OSError, match="No space left on device"):
        await inspect(make_folder(tmp_path), into, BASE, BOUNDS, on_a_full_disk)
    assert names_in(into) == []
