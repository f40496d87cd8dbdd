"""A folder and a bucket hold pieces alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from obstore.store import MemoryStore

from adapters.errors import StoreFailure
from gateway.files.bucket import BucketPieces
from gateway.files.pieces import FolderPieces, Pieces
from gateway.files.stores import open_pieces


@pytest.fixture(params=["folder", "bucket"])
def pieces(request: pytest.FixtureRequest, tmp_path: Path) -> Pieces:
    return FolderPieces(tmp_path / "files") if request.param == "folder" else BucketPieces(MemoryStore())


def test_pieces_are_written_read_listed_and_removed(pieces: Pieces) -> None:
    assert list(pieces.parts()) == [] and pieces.numbers("proj_a", "part_a") == []
    for part in ("part_a", "part_b"):
        for number in (10, 0, 2):
            pieces.write("proj_a", part, number, f"{part} {number}".encode())
    pieces.write("proj_b", "part_a", 0, b"another project's")
    pieces.write("proj_a", "part_a", 2, b"written again")
    assert list(pieces.parts()) == [("proj_a", "part_a"), ("proj_a", "part_b"), ("proj_b", "part_a")]
    assert pieces.numbers("proj_a", "part_a") == [0, 2, 10]
    assert pieces.read("proj_a", "part_a", 2) == b"written again"
    assert pieces.read("proj_a", "part_a", 1) is None and pieces.read("proj_c", "part_a", 0) is None
    pieces.remove("proj_a", "part_a")
    pieces.remove("proj_a", "part_a")
    assert pieces.read("proj_a", "part_a", 2) is None
    assert list(pieces.parts()) == [("proj_a", "part_b"), ("proj_b", "part_a")]


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "A", "x" * 65])
def test_nothing_but_an_id_becomes_a_part_of_a_path(pieces: Pieces, name: str) -> None:
    with pytest.raises(AssertionError):
        pieces.read("proj_a", name, 0)


def test_a_store_that_fails_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"in the way")
    with pytest.raises(StoreFailure, match="the file store could not be written"):
        FolderPieces(tmp_path / "file").write("proj_a", "part_a", 0, b"x")
    with pytest.raises(StoreFailure, match="neither a folder nor"):
        open_pieces("ftp://elsewhere")
