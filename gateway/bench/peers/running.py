"""Other gateways that can be measured beside ours: each a process with its own environment, before one upstream."""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import msgspec

from gateway.bench.installation import MODEL_NAME, cpu_s, free_port, spawn

STARTUP_S = 600.0
"""The longest seconds of a start: LiteLLM imports for half a minute on a machine that does nothing else."""


class Peer(msgspec.Struct, frozen=True):
    """Another gateway."""

    name: str
    program: str
    """The path of the program, relative to the folder of peers."""
    made_by: str
    """The command that makes the program there."""


LITELLM = Peer(
    "LiteLLM",
    "litellm/bin/litellm",
    'python3 -m venv {0}/litellm && {0}/litellm/bin/pip install "litellm[proxy]" uvloop',
)
PORTKEY = Peer(
    "Portkey",
    "portkey/node_modules/@portkey-ai/gateway/build/start-server.js",
    "npm install --prefix {0}/portkey @portkey-ai/gateway",
)
PEERS = (LITELLM, PORTKEY)


class RunningPeer(msgspec.Struct, frozen=True):
    """Another gateway that runs."""

    name: str
    port: int
    key: str
    headers: dict[str, str]
    """The headers that a request needs, `authorization` aside."""
    pids: tuple[int, ...]
    """The ids of the processes whose processor time counts."""

    def cpu_s(self) -> float:
        """Return the seconds of processor time that the peer's processes have taken since they started."""
        return sum(map(cpu_s, self.pids))


@contextmanager
def running_upstream(folder: Path) -> Iterator[RunningPeer]:
    """Run the upstream alone, within the context: its latency is a part of that of every gateway."""
    with ExitStack() as stack:
        port = free_port()
        command = (sys.executable, "-m", "gateway.bench.peers.upstream", str(port))
        process = spawn(stack, folder / "upstream.log", command, {})
        yield _await_ready(RunningPeer("upstream", port, "none", {}, (process.pid,)))


@contextmanager
def running_peer(peer: Peer, peers: Path, folder: Path, upstream: RunningPeer) -> Iterator[RunningPeer]:
    """Run another gateway within the context. peers: the folder of its environment; folder: gets configuration and log.

    Raises RuntimeError: when the peer does not start.
    """
    program, port, key = peers.absolute() / peer.program, free_port(), f"sk-{secrets.token_hex(16)}"
    url, headers, environ = f"http://127.0.0.1:{upstream.port}/v1", dict[str, str](), dict[str, str]()
    if peer is LITELLM:
        config = folder / "litellm.json"  # YAML holds JSON
        params = {"model": f"openai/{MODEL_NAME}", "api_base": url, "api_key": "none"}
        models = [{"model_name": MODEL_NAME, "litellm_params": params}]
        config.write_text(json.dumps({"model_list": models, "general_settings": {"master_key": key}}))
        command: tuple[str, ...] = (str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(port))
        environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    else:
        command = ("node", str(program), f"--port={port}", "--headless")
        headers = {"x-portkey-provider": "openai", "x-portkey-custom-host": url}
    with ExitStack() as stack:
        process = spawn(stack, folder / f"{peer.name}.log", command, environ)
        yield _await_ready(RunningPeer(peer.name, port, key, headers, (process.pid,)))


def _await_ready(peer: RunningPeer) -> RunningPeer:
    deadline_s = time.monotonic() + STARTUP_S
    url, headers = f"http://127.0.0.1:{peer.port}/v1/chat/completions", {"authorization": f"Bearer {peer.key}"}
    body = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "hello"}]}
    while time.monotonic() < deadline_s:
        try:
            if httpx.post(url, json=body, headers=headers | peer.headers, timeout=20).status_code == 200:
                return peer
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"{peer.name} did not start; its log is in the folder of the benchmark")
