"""Gateways, engines and a schema of two versions that follow each other work together.

An installation is upgraded under load as `deploy/UPGRADE.md` says, and goes back on the new schema: from the version
before to this one, and from this one to one of tomorrow. No client notices, and the ledger has each request once.
`make long-upgrade` gives the sizes, as for `test_upgrade`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from gateway.domain.tenancy.keys import new_key
from tests.deploy.client import Client, Outcome
from tests.deploy.commands import CommandOutcome, lorikeet
from tests.deploy.gateways import DRAIN_S, SharedSocketGateway, of_tree
from tests.deploy.load import Size, check_whole, load
from tests.deploy.test_upgrade import NOTICED_S, NUM_STREAMS, REQUESTS_PER_S, SECONDS
from tests.deploy.trees import OF_TOMORROW, MakeTree, next_tree, present_tree, previous_tree
from tests.gateway.live import BASE
from tests.gateway.model_folder import make_model_folder
from tests.installation.processes import ChildProcess
from tests.installation.waiting import wait_until

NUM_REPLICAS = 1
"""The number of replicas, one: its engine is replaced by another beside it."""


SMALL, SMALL_TOKENS_PER_S = Size(6, 15.0, (20, 40), slack_s=2.0), 40.0
LONG, LONG_TOKENS_PER_S = Size(NUM_STREAMS, REQUESTS_PER_S, (60, 400)), 20.0

_POOL = """
    WITH pool AS (
        INSERT INTO pools (id, organization_id, name, num_replicas, wanted_revision)
        SELECT 'pool_skew', id, $1, $2, 1 FROM organizations WHERE name = 'default' RETURNING id)
    INSERT INTO pool_revisions (pool_id, revision, model) SELECT id, 1, $3 FROM pool
"""
_ROWS = "SELECT request_id, prompt_tokens, completion_tokens FROM usage_attempts"
_NUM_OPEN = "SELECT coalesce(sum(open_requests), 0)::bigint AS number FROM journals"


class Installation:
    """A host with an agent, engines and two gateways on one port, each with the code of a chosen version."""

    def __init__(
        self, folder: Path, dsn: str, listener: socket.socket, lame_duck_s: float, present: Path | None
    ) -> None:
        """Prepare an installation.

        present: the tree with this checkout's code, whose commands run in this process.
        lame_duck_s: longer than any stream, so that each client learns by `connection: close` that its connection
        ends: no balancer stands between.
        """
        self.dsn = dsn
        self._present = present
        self.port = int(listener.getsockname()[1])
        self._folder = folder
        self._data_dir = folder / "data"
        self._data_dir.mkdir()
        self._model = make_model_folder(folder / "model", context=60_000)
        (self._model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")  # no weights at all
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LORIKEET_")}
        small = {"KV_CACHE_BYTES": "1MiB", "ADAPTER_DEVICE_BYTES": "1MiB", "ADAPTER_HOST_BYTES": "1MiB"}
        self._environ = {
            **inherited,
            **{f"LORIKEET_{name}": value for name, value in small.items()},
            "DATABASE_URL": dsn,
            "LORIKEET_DATA_DIR": str(self._data_dir),
            "LORIKEET_MODEL": str(self._model),
            "LORIKEET_MODEL_NAME": BASE,
            "LORIKEET_DEVICE": "cpu",
            "LORIKEET_ADMIN_KEY": new_key("admin").secret,
            "LORIKEET_URL": f"http://127.0.0.1:{self.port}",
            "LORIKEET_LAME_DUCK_SECONDS": str(lame_duck_s),
            "LORIKEET_DRAIN_SECONDS": str(DRAIN_S),
            "LORIKEET_MAX_CONNECTIONS_PER_ADDRESS": "0",
        }
        self.gateways = [
            SharedSocketGateway(listener, self._environ, folder / f"gateway-{number}.log") for number in range(2)
        ]
        self._agent: ChildProcess | None = None

    def command(self, tree: Path, *words: str, is_refused: bool = False) -> Any:
        """Run a command with the code of a tree and --json; return its decoded output.

        is_refused: True: the command has to fail.
        """
        done = self._run(tree, *words, "--json")
        assert done.returncode == int(is_refused), (words, done.stdout, done.stderr)
        return json.loads(done.stdout)

    def _run(self, tree: Path, *words: str) -> CommandOutcome:
        if tree == self._present:
            return lorikeet(self._environ, *words)
        command, environ = [sys.executable, "-m", "gateway.cli", *words], {**self._environ, **of_tree(tree)}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=300)
        return CommandOutcome(done.returncode, done.stdout, done.stderr)

    def begin(self, tree: Path) -> str:
        """Start all parts with the code of a tree on an empty database; return a tenant's key."""
        self.command(tree, "migrate")
        self.fetch(_POOL, BASE, NUM_REPLICAS, str(self._model))
        self.start_agent(tree)
        for gateway in self.gateways:
            gateway.start(tree)
        for gateway in self.gateways:
            gateway.wait_ready()
        wait_until(lambda: len(self.ready_replicas()) == NUM_REPLICAS, self.log)
        self.command(tree, "tenant", "create", "acme")
        return str(self.command(tree, "key", "create", "--tenant", "acme")["key"])

    def start_agent(self, tree: Path) -> None:
        command = [sys.executable, "-m", "gateway.cli", "agent"]
        environ = {**self._environ, **of_tree(tree)}
        self._agent = ChildProcess(command, log=self._folder / "agent.log", env=environ)
        self._agent.start()

    def replace_agent(self, tree: Path) -> None:
        """Stop the agent, whose engines keep serving, and start another, which takes the engines over."""
        assert self._agent is not None
        before = self.fetch("SELECT generation FROM hosts")[0]["generation"]
        assert self._agent.terminate() == 0, self.log()
        self.start_agent(tree)
        wait_until(lambda: self.fetch("SELECT generation FROM hosts")[0]["generation"] > before, self.log)

    def replace_engines(self, tree: Path) -> None:
        """Replace each engine by one that the present agent starts, blue-green."""
        before = self.ready_replicas()
        for replica_id in before:
            self.command(tree, "replica", "restart", replica_id, "--wait")
        wait_until(lambda: len(self.ready_replicas()) == NUM_REPLICAS, self.log)
        assert not set(before) & set(self.ready_replicas())

    def ready_replicas(self) -> list[str]:
        return [row["id"] for row in self.fetch("SELECT id FROM replicas WHERE state = 'ready' ORDER BY id")]

    def fetch(self, sql: str, *values: object) -> list[asyncpg.Record]:
        async def run() -> list[asyncpg.Record]:
            conn = await asyncpg.connect(self.dsn)
            try:
                return await conn.fetch(sql, *values)
            finally:
                await conn.close()

        return asyncio.run(run())

    def log(self) -> str:
        paths = sorted(self._folder.glob("*.log"))
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in paths)

    def end_gateways(self) -> None:
        for gateway in self.gateways:
            gateway.terminate()

    def close(self) -> None:
        for gateway in self.gateways:
            gateway.close()
        if self._agent is not None:
            self._agent.kill()
        for entry in Path("/proc").glob("[0-9]*"):  # engines, which outlive their agent
            with suppress(OSError):
                if str(self._data_dir).encode() in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)


@contextmanager
def run_installation(folder: Path, dsn: str, lame_duck_s: float, present: Path | None) -> Iterator[Installation]:
    folder.mkdir(mode=0o711)
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        installation = Installation(folder, dsn, listener, lame_duck_s, present)
        try:
            yield installation
        finally:
            installation.close()


def walk(installation: Installation, old: Path, new: Path, pause_s: float, *, takes_newer: bool, num_back: int) -> None:
    """Upgrade an installation from one tree to another by the guide, then go back, without reverting the schema.

    takes_newer: whether the old tree's `migrate` has `--allow-newer`. num_back: the number of gateways that are taken
    back; the others go on beside them. pause_s: the seconds of load between two steps.
    """
    check = installation.command(new, "upgrade", "--check")
    assert check["may_go_on"] and not check["is_done"], check
    assert [step["name"] for step in check["steps"] if step["left"]] == ["schema", "gateways", "agents", "engines"]
    assert installation.command(new, "migrate")["applied"]
    for tree in (new, old):
        if tree is old and takes_newer:  # as the units of systemd do before each start
            assert installation.command(old, "migrate", "--allow-newer")["applied"] == []
        for gateway in installation.gateways[: num_back if tree is old else None]:
            gateway.replace(tree)
            time.sleep(pause_s)
        installation.replace_agent(tree)
        installation.replace_engines(tree)
        check = installation.command(new, "upgrade", "--check")
        assert check["may_go_on"], check
        assert check["is_done"] is (tree is new), check
        time.sleep(pause_s)


def under_load(installation: Installation, secret: str, size: Size, change: Callable[[], None]) -> list[Outcome]:
    """Execute a change of an installation under load; return the outcomes of requests."""
    stop, client = threading.Event(), Client(installation.port, tls=False)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(load, client, secret, stop, size)
        try:
            change()
        finally:
            stop.set()
        outcomes = running.result()
    print(f"{len(outcomes)} requests, {client.num_opened} connections, ", end="")
    return outcomes


@pytest.mark.parametrize(
    ("old_tree", "new_tree"),
    [(previous_tree, present_tree), (present_tree, next_tree)],
    ids=["from-the-version-before", "to-the-version-of-tomorrow"],
)
def test_an_installation_is_upgraded_and_taken_back_and_no_client_notices(
    old_tree: MakeTree, new_tree: MakeTree, empty_dsn: str, open_folder: Path, full: bool
) -> None:
    if new_tree is next_tree and not full:
        pytest.skip("a minute and a half; `make long-upgrade` tries the version of tomorrow")
    size, tokens_per_s = (LONG, LONG_TOKENS_PER_S) if full else (SMALL, SMALL_TOKENS_PER_S)
    lame_duck_s = size.lame_duck_s(tokens_per_s)
    folder = open_folder / new_tree.__name__
    folder.mkdir(mode=0o711)
    old, new = old_tree(folder / "old", tokens_per_s), new_tree(folder / "new", tokens_per_s)
    present = {old_tree: old, new_tree: new}.get(present_tree)
    with run_installation(folder / "installation", empty_dsn, lame_duck_s, present) as installation:
        secret = installation.begin(old)

        def change() -> None:
            ends_s = time.monotonic() + (SECONDS if full else 0.0)
            pause_s, num_back = (NOTICED_S, len(installation.gateways)) if full else (0.0, 1)
            takes_newer = old_tree is not previous_tree
            walk(installation, old, new, pause_s, takes_newer=takes_newer, num_back=num_back)
            while time.monotonic() < ends_s:  # on the new schema: gateways to and fro, beside engines of the other one
                for tree in (new, old):
                    installation.gateways[0].replace(tree)
                    time.sleep(NOTICED_S)

        outcomes = under_load(installation, secret, size, change)
        installation.end_gateways()
        check_whole(outcomes)
        rows = installation.fetch(_ROWS)
        billed = {row["request_id"]: row["completion_tokens"] for row in rows}
        assert len(rows) == len(billed) == len(outcomes)
        assert billed == {each.seen.request_id: each.wanted for each in outcomes}
        assert installation.fetch(_NUM_OPEN)[0]["number"] == 0
        if new_tree is next_tree:
            names = [row["name"] for row in installation.fetch("SELECT name FROM schema_migrations")]
            assert OF_TOMORROW in names
