"""`lorikeet batch`: begun, watched, listed, read and cancelled with a project's key."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli import main
from tests.gateway.batches.jobs import chat_line, file_of
from tests.gateway.conftest import House
from tests.patience import PATIENCE_S


def test_a_batch_is_begun_watched_and_read(house: House, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"LORIKEET_URL": house.url, "LORIKEET_API_KEY": house.acme.key}

    def lorikeet(*words: str, code: int = 0) -> str:
        assert main(["batch", *words], environ) == code, capsys.readouterr()
        return capsys.readouterr().out

    source, target = tmp_path / "lines.jsonl", tmp_path / "results.jsonl"
    adapter = f"tiny:{house.acme.adapter}"
    source.write_bytes(file_of([chat_line("a"), chat_line("b", model=adapter), chat_line("c", temperature=9)]))
    ended = json.loads(lorikeet("create", str(source), "--wait", "--json"))
    assert ended["status"] == "completed" and ended["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert "2 completed, 1 failed, 3 in all" in lorikeet("status", ended["id"])
    assert ended["id"] in lorikeet("list")
    lorikeet("results", ended["id"], "--out", str(target))
    found = {json.loads(line)["custom_id"] for line in target.read_text().splitlines()}
    failed = json.loads((tmp_path / "results.errors.jsonl").read_text())
    assert (found, failed["custom_id"]) == ({"a", "b"}, "c")
    assert main(["batch", "results", ended["id"], "--out", str(target)], environ) == 1
    assert capsys.readouterr().err == f"lorikeet: {target} exists already: --force replaces it\n"
    output = target.read_text()
    target.unlink()
    assert main(["batch", "results", ended["id"], "--out", str(target)], environ) == 1
    assert "results.errors.jsonl exists already" in capsys.readouterr().err and not target.exists()
    lorikeet("results", ended["id"], "--out", str(target), "--force")
    assert target.read_text() == output
    assert main(["batch", "results", ended["id"], "--out", "-"], environ) == 0
    shown = capsys.readouterr()
    assert shown.out == output
    where = f"`lorikeet file get {ended['error_file_id']} --out -` shows them"
    assert shown.err == f"lorikeet: 1 lines failed: {where}\n"
    assert main(["file", "get", ended["error_file_id"], "--out", "-"], environ) == 0
    assert json.loads(capsys.readouterr().out) == failed
    assert main(["batch", "results", ended["id"], "--out", "-", "--json"], environ) == 2
    assert "--json and --out -" in capsys.readouterr().err
    source.write_bytes(b"{no\n")
    out = lorikeet("create", str(source), "--wait", code=1)
    fault = "line 1: This line is not parseable as valid JSON. (invalid_json_line)"
    assert fault in out
    refused = out.split()[0]
    assert main(["batch", "results", refused, "--out", str(tmp_path / "none.jsonl")], environ) == 1
    assert capsys.readouterr() == ("", f"lorikeet: the batch failed, no line ran: {fault}\n")
    assert not (tmp_path / "none.jsonl").exists()
    assert main(["batch", "cancel", ended["id"]], environ) == 1
    assert "Cannot cancel a batch with status 'completed'" in capsys.readouterr().err


def test_an_interrupted_wait_names_the_batch_that_goes_on(house: House, tmp_path: Path) -> None:
    environ = os.environ | {"LORIKEET_URL": house.url, "LORIKEET_API_KEY": house.acme.key}
    command = [sys.executable, "-m", "gateway.cli", "batch"]
    source = tmp_path / "lines.jsonl"
    source.write_bytes(file_of(chat_line(str(index), max_tokens=200) for index in range(300)))
    waiting = subprocess.Popen(
        [*command, "create", str(source), "--wait", "--json"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert waiting.stderr is not None
        batch_id = waiting.stderr.readline().removesuffix(" is created\n")
        waiting.send_signal(signal.SIGINT)
        out, err = waiting.communicate(timeout=PATIENCE_S)
    finally:
        waiting.kill()
    assert (waiting.returncode, out) == (130, "")
    assert err == f"lorikeet: {batch_id} goes on; `lorikeet batch cancel {batch_id}` ends it\n"
    ended = subprocess.run([*command, "cancel", batch_id], env=environ, capture_output=True, text=True, check=True)
    assert ended.stdout.startswith(f"{batch_id} is cancel")
