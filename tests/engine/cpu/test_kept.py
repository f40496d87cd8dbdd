"""Quantized matrices are made once and kept: later starts read the same ones, and anything else is made again."""

from __future__ import annotations

import fcntl
import logging
import resource
import shutil
from pathlib import Path, PosixPath
from typing import Any, Literal

import pytest
import torch

from engine.config import UnsupportedModel, load_model_config
from engine.cpu.kept import SUFFIX, KeptMatrices, MatricesWriter, matrices_file
from engine.cpu.matrices import matrices_bytes
from engine.cpu.quantization import load_quantized
from engine.models.weights import ModelWeights
from kernels.cpu.library import installed
from kernels.cpu.linear import NativeLinear
from kernels.cpu.matrix import FORMATS, Format
from tests.engine.models.tiny import save_tiny

pytestmark = pytest.mark.skipif(installed() is None, reason="the native kernels are not built: run make")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny("qwen2", tmp_path)
    return tmp_path


def load(folder: Path, kind: Format | Literal["none"] = "int8", dtype: torch.dtype = torch.float32) -> ModelWeights:
    return load_quantized(folder, load_model_config(folder), kind, dtype)


def numbers(weights: ModelWeights) -> list[torch.Tensor]:
    layers = [each for layer in weights.layers for each in (layer.qkv, layer.o, layer.gate_up, layer.down)]
    products = [each for each in (weights.lm_head, *layers) if isinstance(each, NativeLinear)]
    assert len(products) == 1 + len(layers)
    return [each.weight.dequantized() for each in products] + [weights.embed(torch.arange(199))]


def are_equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_later_start_reads_what_the_first_one_made(
    kind: Format, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = numbers(load(folder, kind))
    path = matrices_file(folder, kind)
    written = path.stat()
    caplog.clear()
    # Weights are not looked at: only norms and biases are read from the checkpoint.
    assert are_equal(numbers(load(folder, kind)), first)
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (written.st_mtime_ns, written.st_ino)
    assert not caplog.records


def test_one_format_is_kept_and_interrupted_files_are_removed(folder: Path) -> None:
    load(folder, "int8")
    dead = folder / f".lorikeet-int8{SUFFIX}.1"  # a process of this number is alive
    alive = folder / f".lorikeet-int8{SUFFIX}.2"
    alive.touch()

    def found(kind: Literal["none", "int8", "int4"]) -> list[str]:
        dead.touch()
        load(folder, kind)
        return sorted(path.name for path in folder.glob(f"*{SUFFIX}*"))

    with alive.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert found("int4") == [alive.name, f"lorikeet-int4{SUFFIX}"]
        assert found("int4") == [alive.name, f"lorikeet-int4{SUFFIX}"]  # nothing is written
    assert found("none") == [f"lorikeet-int4{SUFFIX}"]


def test_a_file_is_locked_while_it_is_written(folder: Path) -> None:
    writer = MatricesWriter(matrices_file(folder, "int8"), "", 1)
    load(folder, "none")
    (beside,) = folder.glob(f".*{SUFFIX}*")
    writer.abandon()
    assert not beside.exists()


def test_a_full_disk_is_one_line_in_the_log(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No file may become longer than what is written at once, so that closing it fails too."""
    expected = numbers(load(folder))
    path = matrices_file(folder, "int8")
    path.unlink()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        weights = load(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert are_equal(numbers(weights), expected)
    (record,) = caplog.records
    assert "the next start quantizes again" in record.getMessage()
    assert not list(folder.glob(f"*{SUFFIX}*"))


def test_another_format_that_cannot_be_removed_stays(folder: Path) -> None:
    matrices_file(folder, "int8").mkdir()
    load(folder, "int4")
    assert matrices_file(folder, "int4").exists()


@pytest.mark.parametrize("kind", FORMATS)
def test_the_size_of_all_matrices_is_known_before_they_are_made(kind: Format, folder: Path) -> None:
    weights = load(folder, kind)
    layers = [each for layer in weights.layers for each in (layer.qkv, layer.o, layer.gate_up, layer.down)]
    native = [each.weight for each in (weights.lm_head, *layers) if isinstance(each, NativeLinear)]
    tied = load_model_config(folder).tie_word_embeddings
    made = [part for matrix in (*native, *native[: 0 if tied else 1]) for part in matrix.parts()]
    total = sum(len(part.memory) for part in made)
    assert total - 64 * len(made) < matrices_bytes(load_model_config(folder), kind) <= total


def test_nothing_is_written_where_not_everything_has_room(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = MatricesWriter(matrices_file(folder, "int8"), "", shutil.disk_usage(folder).total)
    assert not list(folder.glob(f".*{SUFFIX}*"))
    writer.finish()
    assert not matrices_file(folder, "int8").exists()
    (record,) = caplog.records
    assert "the next start quantizes again" in record.getMessage()


def test_matrices_that_were_made_of_another_dtype_are_not_taken(folder: Path) -> None:
    expected = numbers(load(folder, dtype=torch.bfloat16))
    matrices_file(folder, "int8").unlink()
    assert not torch.equal(numbers(load(folder))[0], expected[0])
    assert are_equal(numbers(load(folder, dtype=torch.bfloat16)), expected)


def test_a_file_that_is_replaced_while_it_is_read_is_read_as_it_was(folder: Path) -> None:
    load(folder)
    path = matrices_file(folder, "int8")

    class Replaced(PosixPath):
        def open(self, *args: Any, **kwargs: Any) -> Any:
            file = super().open(*args, **kwargs)
            path.unlink()
            path.touch()
            return file

    library = installed()
    assert library is not None
    with pytest.raises(FileNotFoundError, match="other matrices"):
        KeptMatrices(Replaced(path), library, "other matrices")


@pytest.mark.parametrize("kind", FORMATS)
def test_a_number_that_is_not_finite_is_named_by_its_tensor(kind: Format, folder: Path) -> None:
    model = save_tiny("qwen2", folder)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 5] = torch.inf
    model.save_pretrained(folder)
    with pytest.raises(UnsupportedModel, match=r"model\.layers\.1\.mlp\.down_proj\.weight has numbers .* not finite"):
        load(folder, kind)
    assert not list(folder.glob(f"*{SUFFIX}*"))


def test_any_damaged_byte_is_noticed_and_the_file_made_again(
    folder: Path, caplog: pytest.LogCaptureFixture, full: bool
) -> None:
    expected = numbers(load(folder))
    path = matrices_file(folder, "int8")
    content = path.read_bytes()
    places = range(0, len(content), 97 if full else len(content) // 12)
    for place in (*places, len(content) - 1, len(content) - 33, len(content) - 40):
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert are_equal(numbers(load(folder)), expected)
        (record,) = caplog.records
        assert "quantizing again" in record.getMessage()
        assert path.read_bytes() == content
    for length in (0, 7, 40, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        assert are_equal(numbers(load(folder)), expected)
        assert path.read_bytes() == content


def test_matrices_of_another_model_are_not_taken(folder: Path, tmp_path: Path) -> None:
    """The other model has the same config and tensors of the same names and shapes."""
    load(folder)
    other = tmp_path / "other"
    model = save_tiny("qwen2", other)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    model.save_pretrained(other)
    expected = numbers(load(other))
    shutil.copyfile(matrices_file(folder, "int8"), matrices_file(other, "int8"))
    assert are_equal(numbers(load(other)), expected)
    assert not are_equal(numbers(load(folder)), expected)


def test_a_folder_that_cannot_be_written_to_is_one_line_in_the_log(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder stands where the file would be: nobody can replace that, whatever the rights."""
    (matrices_file(folder, "int8") / "in the way").mkdir(parents=True)
    first = numbers(load(folder))
    (matrices_file(folder, "int8") / "in the way").rmdir()
    matrices_file(folder, "int8").rmdir()
    messages = [record.getMessage() for record in caplog.records]
    assert any("the next start quantizes again" in message for message in messages)
    assert not list(folder.glob(f".*{SUFFIX}*"))
    assert are_equal(numbers(load(folder)), first)
