"""A server of the benchmark's own: `lorikeet serve` on a free port, over a data folder that is kept between runs.

`python -m gateway.bench.own_server FOLDER COMMAND...` runs a command with OPENAI_BASE_URL and OPENAI_API_KEY of one.

Knows only a user's view of the server: the environment it reads, `demo.env`, readiness and SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx

from gateway.bench.load import Unusable

START_TIMEOUT_S = 600.0  # a fresh folder first prepares the demo's model
STOP_TIMEOUT_S = 60.0
POLL_S = 0.2
OF_OTHERS = frozenset({"DATABASE_URL", "LORIKEET_MODEL", "LORIKEET_HOST"})


@contextlib.contextmanager
def own_server(data_dir: Path, settings: Mapping[str, str] | None = None) -> Iterator[dict[str, str]]:
    """Start a server in a data folder, and yield the variables of its `demo.env` once the server is ready.

    settings: variables of the server's own.

    Raises Unusable: when the server does not start; the error has the end of the server's log.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    log_path = data_dir / "serve.log"
    # No settings of the shell: least of all a database that others use.
    environ = {name: value for name, value in os.environ.items() if name not in OF_OTHERS}
    environ |= {"LORIKEET_DATA_DIR": str(data_dir), "LORIKEET_PORT": str(port)} | dict(settings or {})
    with log_path.open("w") as log:
        command = [sys.executable, "-m", "gateway.cli", "serve"]
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait_until_ready(process, f"http://127.0.0.1:{port}/health/ready", log_path)
            lines = (data_dir / "demo.env").read_text().splitlines()
            yield dict(line.split("=", 1) for line in lines)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log_path: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url, trust_env=False).status_code == httpx.codes.OK:
                return
        time.sleep(POLL_S)
    last_line = (log_path.read_text().splitlines() or ["it said nothing"])[-1]
    raise Unusable(f"lorikeet serve did not start: {last_line} (all of it in {log_path})")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main(arguments: list[str]) -> int:
    """Run a command beside a server; return its exit status, 1 if the server does not start, 2 for wrong usage."""
    if len(arguments) < 2:
        sys.stderr.write("usage: python -m gateway.bench.own_server FOLDER COMMAND...\n")
        return 2
    try:
        with own_server(Path(arguments[0]).absolute()) as access:
            return subprocess.run(arguments[1:], env={**os.environ, **access}, check=False).returncode
    except Unusable as error:
        sys.stderr.write(f"bench: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
