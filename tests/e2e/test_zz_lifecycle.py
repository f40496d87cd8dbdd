"""Broken processes come back by themselves, stopped ones leave nothing behind. Stops the shared installation: run
last."""

from __future__ import annotations

import json
import os
import signal

import httpx

from tests.e2e.installation import BASE, Installation
from tests.installation.waiting import wait_until
from tests.patience import PATIENCE_S


def first_start_times_ns(installation: Installation) -> dict[str, int]:
    """Return the times, in ns, when files of a first start were written: model, adapters, the database's cluster."""
    folder = installation.data_dir
    made = [path for name in ("models", "adapters") for path in (folder / name).resolve().rglob("*")]
    files = [path for path in made if path.is_file() and not path.name.startswith(".")]  # no locks
    return {str(path): path.stat().st_mtime_ns for path in (*files, folder / "postgres/cluster/PG_VERSION")}


def lines_of_a_stream(installation: Installation, max_tokens: int) -> httpx.Response:
    body = {
        "model": f"{BASE}:pirate",
        "messages": [{"role": "user", "content": "Tell me a long story."}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": True,
    }
    headers = {"Authorization": f"Bearer {installation.keys['OPENAI_API_KEY']}"}
    return httpx.stream(
        "POST", f"{installation.url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE_S
    )


def test_a_killed_engine_ends_its_streams_with_an_error_and_comes_back(installation: Installation) -> None:
    with lines_of_a_stream(installation, max_tokens=2000) as response:
        lines = (line for line in response.iter_lines() if line)
        for _ in range(5):
            next(lines)
        os.kill(installation.engine_pid(), signal.SIGKILL)
        rest = list(lines)
    assert "error" in json.loads(rest[-1].removeprefix("data: "))
    assert "data: [DONE]" not in rest

    def answers() -> bool:
        with lines_of_a_stream(installation, max_tokens=2) as response:
            response.read()
            return response.status_code == 200

    wait_until(answers, pause_s=0.2)


def test_a_killed_serve_leaves_its_engine_and_the_next_one_takes_it_over(installation: Installation) -> None:
    pid = installation.engine_pid()
    installation.kill()
    started_s = installation.start()
    assert installation.engine_pid() == pid, f"after {started_s:.1f} s"
    with lines_of_a_stream(installation, max_tokens=2) as response:
        assert response.status_code == 200
        response.read()


def test_a_client_that_leaves_frees_its_slot(installation: Installation) -> None:
    with lines_of_a_stream(installation, max_tokens=4000) as response:
        next(response.iter_lines())

    def is_idle() -> bool:
        metrics = httpx.get(installation.metrics_url, timeout=PATIENCE_S).text
        running = [line for line in metrics.splitlines() if line.startswith("vllm:num_requests_running")]
        return bool(running) and float(running[0].split()[-1]) == 0

    # The engine's picture travels once a second; its text would take minutes.
    wait_until(is_idle, "its slot is still taken", patience_s=60)


def test_a_second_start_on_the_same_folder_says_so(installation: Installation) -> None:
    second = installation.cli("serve")
    assert second.returncode == 1
    assert str(installation.data_dir) in second.stderr or installation.url in second.stderr


def test_a_stop_drains_running_streams_and_leaves_nothing_behind(installation: Installation) -> None:
    keys = installation.keys
    assert len(first_start_times_ns(installation)) > 3, "a model, adapters and a database"
    with lines_of_a_stream(installation, max_tokens=60) as response:
        lines = response.iter_lines()
        next(lines)
        assert installation.process is not None
        installation.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert installation.process.wait(PATIENCE_S) == 0
    assert installation.processes() == []
    before = first_start_times_ns(installation)
    installation.start()
    assert first_start_times_ns(installation) == before, "a second start prepares nothing again"
    assert installation.keys == keys
    with lines_of_a_stream(installation, max_tokens=2) as response:
        assert response.status_code == 200
        response.read()
