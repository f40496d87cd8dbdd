"""A host for tests: a data folder, models, agents in processes of their own, and the rows that they work on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from engine.config import EngineConfig, model_digest
from engine.curve import Peer
from engine.protocol import (
    EngineMessage,
    Final,
    GenerateRequest,
    Heartbeat,
    SamplingParams,
    StepOutputs,
    Submit,
    Welcome,
)
from gateway.backends.engine.link import EngineLink
from gateway.db.organization.organizations import ensure_organization
from gateway.db.pool import Database
from gateway.db.pools import pools, revisions
from gateway.db.pools.replicas import ReplicaRow
from gateway.db.pools.served import ServedPool, list_served
from gateway.pools.first_pool import make_pool
from gateway.support.host import host_keys
from tests.gateway.agent import agent_main
from tests.gateway.model_folder import make_model_folder
from tests.installation.forks import ForkedProcess
from tests.installation.processes import ChildProcess
from tests.installation.waiting import until
from tests.patience import PATIENCE_S


class Host:
    """One host, whose agents run as processes of their own; `close` ends all agents and engines of the host.

    network: the name of the network namespace in which the agents and engines run; "": that of the tests.
    """

    def __init__(self, folder: Path, dsn: str, database: Database, network: str = "") -> None:
        self.data_dir = folder / "data"
        self.data_dir.mkdir(parents=True)
        self.database = database
        self._folder = folder
        self._network = network
        self._agents: list[ChildProcess] = []
        self.variables = {name: value for name, value in os.environ.items() if not name.startswith("LORIKEET_")}
        self.variables |= {"LORIKEET_DATA_DIR": str(self.data_dir), "DATABASE_URL": dsn, "LORIKEET_DEVICE": "cpu"}
        # Estimates of half a GiB, so that a small machine has room for the replicas of a test.
        small = {"KV_CACHE_BYTES": "1MiB", "ADAPTER_DEVICE_BYTES": "1MiB", "ADAPTER_HOST_BYTES": "1MiB"}
        self.variables |= {f"LORIKEET_{name}": value for name, value in small.items()}

    def agent(self, *flags: str) -> ChildProcess:
        """Start an agent, whose engines are fake ones."""
        return self._start(
            ForkedProcess(agent_main.main, *flags, log=self._log, env=self.variables, network=self._network)
        )

    def real_agent(self) -> ChildProcess:
        """Start an agent as an operator does, whose engines are real ones."""
        return self._start(
            ChildProcess([sys.executable, "-m", "gateway.cli", "agent"], log=self._log, env=self.variables)
        )

    @property
    def _log(self) -> Path:
        return self._folder / "agent.log"

    def _start(self, made: ChildProcess) -> ChildProcess:
        made.start()
        self._agents.append(made)
        return made

    def model(self, name: str = "tiny", **files: str) -> Path:
        """Return the folder of a prepared model. files: the texts of further files in the folder, by name."""
        folder = make_model_folder(self._folder / name)
        config = (folder / "config.json").read_text()
        (folder / "config.json").write_text(config.replace("1e-05", f"1.{len(name)}e-05"))
        (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")  # no weights at all
        for file, text in files.items():
            (folder / file).write_text(text)
        return folder

    async def pool(self, folder: Path, num_replicas: int = 1, name: str = "tiny") -> pools.PoolRow:
        async with self.database.acquire() as conn:
            async with conn.transaction():
                assert await make_pool(
                    conn,
                    name,
                    model=str(folder),
                    folder=folder,
                    base_digest=model_digest(folder),
                    num_replicas=num_replicas,
                )
            organization = await ensure_organization(conn, "default")
            row = await pools.find_pool(conn, organization.id, name)
        assert row is not None
        return row

    async def want(
        self, pool: pools.PoolRow, model: str, *, allow_unfit_adapters: bool = False, **settings: str
    ) -> int:
        """Request a new revision of a pool; return its number.

        allow_unfit_adapters: True: adapters that do not fit the new base are given up.
        """
        async with self.database.transaction() as conn:
            assert await pools.lock_pool_by_id(conn, pool.organization_id, pool.id) is not None
            made = await revisions.add_revision(
                conn, pool.id, model, settings, allow_unfit_adapters=allow_unfit_adapters
            )
            await pools.want_revision(conn, pool.id, made.revision)
        return made.revision

    async def scale(self, pool: pools.PoolRow, num_replicas: int) -> None:
        async with self.database.acquire() as conn:
            await pools.scale_pool(conn, pool.id, num_replicas)

    async def served(self, name: str = "tiny") -> ServedPool | None:
        async with self.database.acquire() as conn:
            return next((each for each in await list_served(conn) if each.row.name == name), None)

    async def replicas(self, *states: str, name: str = "tiny") -> list[ReplicaRow]:
        """Return the replicas of a pool that are in one of these states; all replicas, where no state is named."""
        pool = await self.served(name)
        return [each for each in (pool.replicas if pool else ()) if not states or each.state in states]

    async def ready(
        self, count: int = 1, revision: int | None = None, name: str = "tiny", *, patience_s: float = PATIENCE_S
    ) -> list[ReplicaRow]:
        """Wait until a pool has exactly `count` replicas, all ready and of the revision that serves; return the
        replicas.

        count: the number of replicas. revision: the number of the revision; None: any revision. name: the name of the
        pool. patience_s: the most seconds to wait.
        """

        async def ask() -> list[ReplicaRow] | None:
            pool = await self.served(name)
            rows = pool.replicas if pool is not None else []
            fits = len(rows) == count and all(
                each.state == "ready" and revision in (None, each.revision) for each in rows
            )
            fits = fits and (pool is None or count == 0 or pool.row.revision == rows[0].revision)
            return (rows or [None]) if fits else None  # type: ignore[list-item]

        found = await until(ask, lambda: f"never {count} ready: {self.log()}", patience_s=patience_s)
        return [each for each in found if each is not None]

    def configurations(self, folder: Path) -> list[EngineConfig]:
        """Return the configurations with which the engines of a model were started."""
        return [msgspec.json.decode(path.read_bytes(), type=EngineConfig) for path in sorted(folder.glob("*-*.json"))]

    def pids(self) -> list[int]:
        """Return the process ids of this host's running engines."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                is_engine = b"engine.fake" in command or b"\0-m\0engine\0" in command
                is_engine = is_engine and not command.startswith(b"/bin/sh\0")  # the shell that waits for one
                if is_engine and self._mark().encode() in command and state_of(entry) != "Z":
                    found.append(int(entry.name))
        return sorted(found)

    def _mark(self) -> str:
        """Return a text that occurs only in the commands of this host's engines."""
        return str(self.data_dir)

    async def has_generation(self, number: int) -> bool:
        """Tell whether the host's present agent is the one with this generation of the lease."""
        async with self.database.acquire() as conn:
            return bool(await conn.fetchval("SELECT generation FROM hosts") == number)

    def watched_addresses(self) -> Watch:
        """Start to record which engines of this host run."""
        return Watch(self)

    def addresses(self) -> list[str]:
        """Return the file names of the sockets of all running engines, such as `replica-generation`."""
        found = []
        for pid in self.pids():
            with contextlib.suppress(OSError, ValueError):
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                found.append(words[words.index("--endpoint") + 1].rpartition("/")[2])
        return found

    @staticmethod
    def kill(pid: int) -> None:
        """Kill one engine with SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    @staticmethod
    def go_on(pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def log(self) -> str:
        return (self._folder / "agent.log").read_text()[-3000:]

    def close(self) -> None:
        for agent in self._agents:
            if agent.popen is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(agent.popen.pid, signal.SIGCONT)
            agent.kill()
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def state_of(process: Path) -> str:
    """Return the letter of a process's state (proc(5)). process: the process's folder in /proc."""
    return (process / "stat").read_text().rpartition(")")[2].split()[0]


class Watch:
    """The continuous record of a host's running engines."""

    def __init__(self, host: Host) -> None:
        self.generations: set[str] = set()
        self.most_at_once = 0
        """The most engines of one replica that lived at one moment."""
        self._host = host
        self._task = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while True:
            addresses = await asyncio.to_thread(self._host.addresses)
            counts = Counter(address.partition("-")[0] for address in addresses)
            self.most_at_once = max([self.most_at_once, *counts.values()])
            self.generations.update(addresses)
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


class _Caller:
    """The gateway's side of a connection to one engine, reduced to what one request needs."""

    def __init__(self) -> None:
        self.is_there = asyncio.Event()
        self.finals: dict[str, asyncio.Future[Final | None]] = {}
        self.begun: set[str] = set()
        """The requests of which the engine has sent a token."""
        self.resident: set[str] = set()
        """The adapters on the engine's device, by its last heartbeat, which each connected gateway receives."""

    def connected(self, welcome: Welcome) -> None:
        self.is_there.set()

    def received(self, message: EngineMessage) -> None:
        if isinstance(message, StepOutputs):
            self.begun.update(delta.request_id for delta in message.deltas)
            for final in message.finals:
                self.finals[final.request_id].set_result(final)
        if isinstance(message, Heartbeat) and message.stats is not None:
            self.resident = set(message.stats.resident_adapters)

    def disconnected(self, reason: str) -> None:
        for answer in self.finals.values():
            if not answer.done():
                answer.set_result(None)


class Conversation:
    """A connection to one engine."""

    def __init__(self, link: EngineLink, caller: _Caller) -> None:
        self._link = link
        self._caller = caller

    def call(self, num_tokens: int, adapter: str = "") -> asyncio.Future[Final | None]:
        """Request a number of tokens. The result is None where the engine goes away meanwhile."""
        request = GenerateRequest(
            uuid.uuid4().hex, [1, 2, 3], SamplingParams(num_tokens, ignore_eos=True), "t", adapter
        )
        answer: asyncio.Future[Final | None] = asyncio.get_running_loop().create_future()
        self._caller.finals[request.request_id] = answer
        self._link.send(Submit(request))
        return answer

    async def begun(self, num: int = 1) -> None:
        """Wait until the engine has sent tokens of so many requests."""

        async def have_begun() -> bool:
            return len(self._caller.begun) >= num

        await until(have_begun)

    async def use(self, adapter: str) -> None:
        """Use an adapter, and wait until a heartbeat reports it as loaded."""
        await self.call(1, adapter)

        async def is_there() -> bool:
            return adapter in self._caller.resident

        await until(is_there)


@asynccontextmanager
async def calling(host: Host, replica: ReplicaRow, peer: Peer | None = None) -> AsyncIterator[Conversation]:
    """Give a connection to a replica's engine. peer: the keys for an engine on TCP; None: the host's own keys."""
    if peer is None and replica.public_key is not None:
        peer = Peer(host_keys(host.data_dir), replica.public_key)
    caller = _Caller()
    served = await host.served()
    assert served is not None and replica.address is not None
    digest = served.revisions[replica.revision].base_digest
    assert digest is not None
    link = EngineLink(replica.address, database_id="", model_digest=digest, listener=caller, peer=peer)
    link.start()
    try:
        await caller.is_there.wait()
        yield Conversation(link, caller)
    finally:
        await link.stop()
