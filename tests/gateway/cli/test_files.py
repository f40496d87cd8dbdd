"""`lorikeet file`: stored, listed, downloaded and deleted with a project's key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.cli import main
from tests.gateway.conftest import House


def test_a_file_goes_to_the_server_and_back(house: House, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"LORIKEET_URL": house.url, "LORIKEET_API_KEY": house.globex.key}

    def lorikeet(*words: str) -> str:
        assert main(["file", *words], environ) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    source, target = tmp_path / "lines.jsonl", tmp_path / "back.jsonl"
    source.write_bytes(b"{}\n" * 1000)
    id = lorikeet("add", str(source)).strip()
    other = json.loads(lorikeet("add", str(source), "--purpose", "user_data", "--days", "2", "--json"))
    assert other["expires_at"] == other["created_at"] + 2 * 86400
    assert id in lorikeet("list", "--purpose", "batch") and other["id"] in lorikeet("list")
    assert lorikeet("get", id, "--out", str(target)) == f"wrote 3000 bytes to {target}\n"
    assert target.read_bytes() == source.read_bytes()
    target.write_bytes(b"mine")
    assert main(["file", "get", id, "--out", str(target)], environ) == 1
    assert (capsys.readouterr().err, target.read_bytes()) == (
        f"lorikeet: {target} exists already: --force replaces it\n",
        b"mine",
    )
    assert lorikeet("get", id, "--out", str(target), "--force") == f"wrote 3000 bytes to {target}\n"
    assert lorikeet("get", id, "--out", "-") == "{}\n" * 1000
    for each in (id, other["id"]):
        assert lorikeet("delete", each) == f"deleted {each}\n"
    assert json.loads(lorikeet("list", "--json"))["data"] == []
    assert main(["file", "get", id, "--out", "-"], environ) == 1
    assert f"No such File object: {id}" in capsys.readouterr().err
    assert main(["file", "add", str(tmp_path / "none")], environ) == 1
