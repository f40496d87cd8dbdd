"""The actor beside an engine: starts it as a process of the node, adopts it if it lives already, and reports on it.

It runs in a process of Ray on a node. Several of a node share the installation's folder below `ray` in the node's data
folder, whose lock files say which engines live: each supervisor can report all engines of the node, and end them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import ray

from engine.config import UnsupportedModel, model_digest
from engine.version import VERSION
from gateway.agent.commands import engine_environ
from gateway.agent.launcher import CannotStart, Engine, EngineEnd, LaunchPlace, LaunchRequest, LaunchSpec
from gateway.agent.listeners import LinkListener
from gateway.agent.local import LocalLauncher
from gateway.agent.ray.messages import Setup
from gateway.support.process import make_private_folder, write_private

OFFER_S = 15.0
"""Seconds for which an offered place is kept free until the agent, which may have died, decides."""

_RECORD_SUFFIX = ".record"
_GPU_SUFFIX = ".gpu"


class ResourceRecord(msgspec.Struct, frozen=True):
    """A record, kept in a file, of the resources of this node that an engine which was started here takes."""

    ask: LaunchRequest
    """The engine's needs."""
    gpu: str | None
    """The accelerator that the engine has; None on processors."""


class NodeEngines(msgspec.Struct, frozen=True):
    """The engines of a node, as a supervisor reports them."""

    node_id: str
    engines: list[Engine]
    asks: dict[str, LaunchRequest]
    """The resources that each of these engines takes, by replica."""
    ended: list[EngineEnd]
    """Engines that this supervisor has seen end."""


class Supervisor:
    """Supervises the engines of one node.

    replica_id: the replica whose engine's resources Ray keeps here; "" if the supervisor only looks.
    """

    def __init__(self, setup: Setup, replica_id: str = "") -> None:
        self._setup = setup
        self._replica_id = replica_id
        self._launcher: LocalLauncher | None = None
        self._keys: list[str] = []
        self._only_one_admits = asyncio.Lock()
        self._folder = Path(os.environ.get("LORIKEET_DATA_DIR") or setup.data_dir).absolute()
        self._folder = self._folder / "ray" / setup.namespace
        self._ended: dict[str, EngineEnd] = {}
        self._starting: asyncio.Task[Engine | None] | None = None
        self._decision: asyncio.Future[LaunchSpec | None] | None = None
        self._context = ray.get_runtime_context()
        self._gpu = next((str(gpu) for gpu in self._context.get_accelerator_ids().get("GPU", [])), None)

    async def look(self, public_keys: list[str]) -> NodeEngines:
        """Return the engines of this node. public_keys: the keys whose holders may connect to engines from now on."""
        launcher = await self._ready(public_keys)
        engines = launcher.running()
        asks = {id: record.ask for id in engines if (record := self._record_of(id)) is not None}
        return NodeEngines(self._context.get_node_id(), list(engines.values()), asks, list(self._ended.values()))

    async def offer(self, ask: LaunchRequest, public_keys: list[str]) -> LaunchPlace | None:
        """Reserve a place for an engine on this node, and return it; the engine starts there once `go` is called.

        Return None if an engine of the replica lives already.

        Raises CannotStart: when this node has another version, or lacks the model or a free GPU.
        """
        launcher = await self._ready(public_keys)
        self._check_version()
        await asyncio.to_thread(self._check_model, ask)
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        decision: asyncio.Future[LaunchSpec | None] = asyncio.get_running_loop().create_future()
        offered: asyncio.Future[LaunchPlace] = asyncio.get_running_loop().create_future()

        async def begin(place: LaunchPlace) -> LaunchSpec | None:
            gpu = self._free_gpu(launcher.running())
            record = ResourceRecord(ask, gpu)
            write_private(self._file(ask.replica_id, _RECORD_SUFFIX), msgspec.json.encode(record).decode())
            offered.set_result(
                msgspec.structs.replace(
                    place,
                    device="cpu" if gpu is None else "cuda",
                    num_threads=ask.num_cpus if gpu is None else None,
                    cache_dir=str(self._folder / "adapter-cache"),
                )
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(OFFER_S):
                    return _of_this_node(await decision, gpu)
            return None

        self._decision = decision
        self._starting = asyncio.create_task(launcher.start(ask, begin))
        waited: set[asyncio.Future[Any]] = {self._starting, offered}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if offered.done():
            return offered.result()
        self._starting.result()  # raises what stood in the way
        return None

    async def go(self, spec: LaunchSpec | None) -> Engine | None:
        """Start the engine for which `offer` has reserved a place; where spec is None, free the place.

        Raises CannotStart: when the place was given up meanwhile, or the engine cannot start.
        """
        if self._decision is None or self._starting is None or self._decision.done():
            raise CannotStart("the place that was kept for it was given up")
        self._decision.set_result(spec)
        return await self._starting

    async def stop(self, engine: Engine, grace_s: float) -> None:
        """End an engine of this node.

        grace_s: seconds after which the process is killed.
        """
        launcher = await self._ready(self._keys)
        launcher.running()  # watches those that it has not started
        await launcher.stop(engine, grace_s)

    async def forget(self, replica_ids: list[str]) -> None:
        """Remove the files of replicas without a live engine, except for the given replicas.

        replica_ids: the replicas whose files stay.
        """
        launcher = await self._ready(self._keys)
        launcher.forget(set(replica_ids))
        kept = {*replica_ids, *launcher.running()}
        for suffix in (_RECORD_SUFFIX, _GPU_SUFFIX):
            for path in self._folder.glob(f"*{suffix}"):
                if path.name.removesuffix(suffix) not in kept:
                    path.unlink(missing_ok=True)

    async def _ready(self, public_keys: list[str]) -> LocalLauncher:
        """Return the launcher of this node, after its engines were told to admit these keys."""
        if self._launcher is None:
            make_private_folder(self._folder)
            ports = range(self._setup.first_port, self._setup.last_port + 1)
            listener = LinkListener(ray.util.get_node_ip_address(), ports, self._folder)
            launcher = LocalLauncher(self._folder / "replicas", self._folder / "log", listener, apart=True)
            launcher.watch(self._note_end)
            if self._replica_id and self._gpu is not None:
                write_private(self._file(self._replica_id, _GPU_SUFFIX), self._gpu)
            self._launcher = launcher
        async with self._only_one_admits:  # who came later has the later list
            if public_keys != self._keys:
                await self._launcher.admit(public_keys)
                self._keys = public_keys
        return self._launcher

    def _note_end(self, ended: EngineEnd) -> None:
        self._ended[ended.replica_id] = ended

    def _free_gpu(self, engines: Mapping[str, Engine]) -> str | None:
        """Return the GPU for the engine; None where Ray keeps none for it.

        After all actors of a node were started again, Ray may have given them other GPUs than those on which their
        engines still run. If an engine uses this actor's GPU, that of the engine's own actor is taken, and
        so on until a GPU is free.
        """
        used = {record.gpu: id for id in engines if (record := self._record_of(id)) is not None and record.gpu}
        used = {gpu: id for gpu, id in used.items() if id != self._replica_id}
        gpu = self._gpu
        while gpu in used:
            try:
                gpu = self._file(used.pop(gpu), _GPU_SUFFIX).read_text()
            except OSError:
                raise CannotStart(f"GPU {gpu} of {socket.gethostname()} is used by another engine") from None
        return gpu

    def _record_of(self, replica_id: str) -> ResourceRecord | None:
        try:
            return msgspec.json.decode(self._file(replica_id, _RECORD_SUFFIX).read_bytes(), type=ResourceRecord)
        except (OSError, msgspec.MsgspecError):
            return None

    def _file(self, replica_id: str, suffix: str) -> Path:
        return self._folder / f"{replica_id}{suffix}"

    def _check_version(self) -> None:
        if self._setup.version != VERSION:
            raise CannotStart(
                f"{socket.gethostname()} has Lorikeet {VERSION}, and the agent {self._setup.version}: they have to "
                "be the same"
            )

    def _check_model(self, ask: LaunchRequest) -> None:
        """Check that this node has the model.

        Raises CannotStart: when the node does not have it.
        """
        try:
            digest = model_digest(ask.model_dir)
        except (OSError, UnsupportedModel, ValueError) as error:
            raise CannotStart(f"{socket.gethostname()} has no model at {ask.model_dir}: {error}") from None
        if digest != ask.base_digest:
            raise CannotStart(f"{socket.gethostname()} has another model at {ask.model_dir} than was prepared")


def _of_this_node(spec: LaunchSpec | None, gpu: str | None) -> LaunchSpec | None:
    """Return the specification of an engine's start, with the interpreter and the environment of this node.

    spec: None: no engine is to be started, and None is returned. gpu: the name by which CUDA knows the engine's GPU;
    None: it computes on processors.
    """
    if spec is None:
        return None
    return msgspec.structs.replace(
        spec, command=[sys.executable, *spec.command[1:]], environ=engine_environ(os.environ, gpu)
    )
