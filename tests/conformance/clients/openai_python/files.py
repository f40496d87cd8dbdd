"""Tests of files and uploads with OpenAI's client."""

import hashlib
import os

import openai as package
import pytest


def test_a_file_is_stored_listed_read_and_deleted(openai, tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"{}\n" * 1000)
    made = openai.files.create(file=path, purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600})
    assert (made.bytes, made.filename, made.expires_at - made.created_at) == (3000, "lines.jsonl", 3600)
    assert made.id in [file.id for file in openai.files.list(purpose="batch")]
    assert openai.files.content(made.id).read() == path.read_bytes()
    assert openai.files.delete(made.id).deleted
    with pytest.raises(package.NotFoundError):
        openai.files.retrieve(made.id)


def test_a_file_comes_part_by_part(openai, tmp_path):
    path = tmp_path / "big.bin"
    path.write_bytes(os.urandom(200_000))
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    done = openai.uploads.upload_file_chunked(
        file=path, mime_type="application/octet-stream", purpose="vision", part_size=70_000, md5=md5
    )
    assert openai.files.content(done.file.id).read() == path.read_bytes()
