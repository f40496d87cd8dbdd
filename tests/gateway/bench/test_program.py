"""The benchmark as a program, against a gateway with the fake engine: its figures, and each error in one line."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from gateway.bench.__main__ import main
from tests.gateway.conftest import House
from tests.gateway.live import BASE
from tests.patience import TRIES

pytestmark = pytest.mark.usefixtures("log_apart")  # the gateway, which logs, runs in this process


def run_bench(house: House, *argv: str, model: str = BASE, key: str = "") -> int:
    return main(["--url", house.url, "--key", key or house.acme.key, "--model", model, *argv])


def output(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines of standard output."""
    return capsys.readouterr().out.splitlines()


def test_every_row_counts_all_tokens_and_times_them(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    adapter = f"{BASE}:{house.acme.adapter}"
    flags = ["--streams", "1", "4", "--requests", "6", "--max-tokens", "10", "--prompt-tokens", "8", "--json"]
    for _ in range(TRIES):  # a machine's other work slows streams beside each other most
        assert run_bench(house, "--model", adapter, *flags) == 0
        rows = [json.loads(line) for line in output(capsys)]
        are_apart = all(row["time_per_token_ms_p50"] > 0 for row in rows)  # not so for tokens that are read at once
        if are_apart and rows[1]["output_tokens_per_s"] > 1.5 * rows[0]["output_tokens_per_s"]:
            break
    assert [(row["streams"], row["requests"], row["output_tokens"], row["errors"]) for row in rows] == [
        (1, 6, 60, 0),
        (4, 6, 60, 0),
    ]
    for row in rows:
        assert 0 < row["time_per_token_ms_p50"] <= row["time_per_token_ms_p99"]
        assert 2 <= row["ttft_ms_p50"] <= row["ttft_ms_p99"]  # a step of this engine takes 2 ms
    assert rows[1]["output_tokens_per_s"] > 1.5 * rows[0]["output_tokens_per_s"]


def test_the_table_has_a_line_for_each_row(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_bench(house, "--streams", "1", "2", "--requests", "2", "--max-tokens", "1", "--prompt-tokens", "4") == 0
    lines = output(capsys)
    assert [line.split()[:2] for line in lines] == [["1", "streams"], ["2", "streams"]]
    assert all("errors 0" in line for line in lines)


def test_requests_that_fail_are_counted_and_named(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_bench(house, "--streams", "2", "--requests", "3", "--prompt-tokens", "600", "--json") == 1
    (row,) = map(json.loads, output(capsys))
    assert (row["requests"], row["errors"], row["ttft_ms_p50"], row["time_per_token_ms_p50"]) == (0, 3, None, None)
    assert row["first_error"].startswith("400: This model's maximum context length is 512 tokens.")


def test_a_refusal_by_the_server_is_reported_in_one_line(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_bench(house, key="sk-wrong") == 1
    assert capsys.readouterr().err.startswith(f"bench: {BASE} does not answer: 401: ")
    assert run_bench(house, model=f"{BASE}:{house.globex.adapter}") == 1
    err = capsys.readouterr().err
    assert err.startswith(f"bench: {BASE}:{house.globex.adapter} does not answer: 404: ")
    assert err.count("\n") == 1


def test_a_missing_server_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    assert main(["--url", f"http://127.0.0.1:{port}", "--key", "sk-any", "--model", BASE]) == 1
    assert capsys.readouterr().err == (
        f"bench: no server answers at http://127.0.0.1:{port}/v1/; start one with `lorikeet serve`\n"
    )


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--key", "k"], "--url or OPENAI_BASE_URL is needed"),
        (["--url", "http://h"], "--key or OPENAI_API_KEY is needed"),
        (["--url", "h:80", "--key", "k"], "argument --url: must begin with http:// or https://, not 'h:80'"),
        (["--url", "http://h", "--key", "k", "--streams", "0"], "argument --streams: must be at least 1"),
    ],
)
def test_wrong_usage_names_the_flag(
    argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(SystemExit) as exit:
        main(["--model", BASE, *argv])
    assert exit.value.code == 2
    assert complaint in capsys.readouterr().err


def test_a_server_that_the_benchmark_cannot_start_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LORIKEET_MAX_WAITING", "none")
    assert main(["--serve", str(tmp_path), "--model", BASE]) == 1
    err = capsys.readouterr().err
    assert err.startswith("bench: lorikeet serve did not start: ") and "LORIKEET_MAX_WAITING" in err
    assert err.count("\n") == 1
