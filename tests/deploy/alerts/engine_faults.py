"""Faults of engines of an installation under load: too many requests, too much text, too many adapters, lost usage."""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack
from pathlib import Path

import asyncpg
import zmq

from adapters.store import AdapterStore
from engine.config import model_digest
from engine.protocol import GenerateRequest, SamplingParams, StepOutputs, Submit, Welcome
from engine.usage_book import MAX_RECORDS
from gateway.db.adapters.adapter_versions import put_adapter
from tests.deploy.alerts.scene import Scene, add_pool_of, crowd
from tests.engine.gateway import Gateway
from tests.faults.pools.tiny_bases import RANK, make_adapter, make_base
from tests.installation.engines import Engine
from tests.installation.processes import ChildProcess

NUM_QUEUED = 50
"""The number of concurrent requests to an engine that runs two at a time."""

NUM_LONG, LONG_TOKENS = 32, 200
"""Requests at one time, and tokens of each, to an engine whose cache holds a third of them."""

NUM_ADAPTERS = 8
NUM_NOT_TAKEN = MAX_RECORDS + 1000
AT_ONCE = 400


def queue_long(scene: Scene, until: ExitStack) -> None:
    """Send many more requests than an engine has places for, so that most answers of the installation begin late.

    The engine is one that schedules, as fake ones do not. It answers 12 requests a second.
    """
    folder = scene.ground.folder
    address = f"ipc://{folder}/crowded.sock"
    flags = ["--endpoint", address, "--model-dir", str(folder / "small"), "--step-s", "0.16", "--max-num-seqs", "2"]
    engine = ChildProcess([sys.executable, "-m", "tests.faults.pools.paced_engine", *flags])
    engine.start()
    until.callback(engine.kill)
    add_pool_of(scene, until, "crowded", address)
    until.enter_context(crowd(scene, ["crowded"], NUM_QUEUED))


def cache_full(scene: Scene, until: ExitStack) -> None:
    """Keep more long answers under way than the cache of a real engine holds."""
    _real_engine(scene, until, "full", "--kv-cache-bytes", "2MiB", "--max-num-seqs", str(NUM_LONG))
    until.enter_context(crowd(scene, ["full"], NUM_LONG, LONG_TOKENS))


def adapters_reloaded(scene: Scene, until: ExitStack) -> None:
    """Send long requests for eight adapters to a real engine that holds two."""
    base = _real_engine(scene, until, "narrow", "--kv-cache-bytes", "4MiB", "--max-adapters", "2")
    names = asyncio.run(_add_adapters(scene, base))
    until.enter_context(crowd(scene, [f"narrow:{name}" for name in names], 4 * NUM_ADAPTERS, LONG_TOKENS))


def usage_dropped(scene: Scene, until: ExitStack) -> None:
    """Send an engine more requests than it keeps usage of, by a gateway of another database that takes none of it."""
    address = f"ipc://{scene.ground.folder}/unread.sock"
    engine = Engine(address, scene.ground.folder / "small")
    engine.start()
    until.callback(engine.kill)
    add_pool_of(scene, until, "unread", address)
    with zmq.Context[zmq.Socket[bytes]]() as context:
        gateway = Gateway(context, address)
        with gateway.socket:
            gateway.hello("another")
            gateway.receive(Welcome)
            for first in range(0, NUM_NOT_TAKEN, AT_ONCE):
                for number in range(first, first + AT_ONCE):
                    gateway.send(Submit(GenerateRequest(f"{number}", [5], SamplingParams(1), "t", pooling="mean")))
                num_ended = 0
                while num_ended < AT_ONCE:
                    outputs = gateway.receive(StepOutputs)
                    assert isinstance(outputs, StepOutputs)
                    assert all(final.error is None for final in outputs.finals), outputs.finals[0]
                    num_ended += len(outputs.finals)


def _real_engine(scene: Scene, until: ExitStack, name: str, *flags: str) -> Path:
    """Start an engine of a tiny base with random weights, and add a pool of that name; return the base's folder."""
    folder = scene.ground.folder
    base, address = make_base(folder / name, seed=1), f"ipc://{folder}/{name}.sock"
    common = ["--device", "cpu", "--dtype", "float32", "--quantization", "none", "--max-model-len", "256"]
    places = ["--endpoint", address, "--model-dir", str(base), "--adapter-store", str(folder / "adapters")]
    command = [sys.executable, "-m", "engine", *places, *common, "--num-threads", "1", *flags]
    engine = ChildProcess(command, log=folder / f"{name}.log")
    engine.start()
    until.callback(engine.kill)
    add_pool_of(scene, until, name, address, base)
    return base


async def _add_adapters(scene: Scene, base: Path) -> list[str]:
    """Add adapters with random weights to a base; return their names."""
    folder, names = scene.ground.folder, [f"narrow-{number}" for number in range(NUM_ADAPTERS)]
    store = AdapterStore(folder / "adapters")
    conn = await asyncpg.connect(scene.ground.postgres.dsn)
    try:
        for number, name in enumerate(names):
            await put_adapter(
                conn,
                scene.ground.world.key.project_id,
                name,
                base_digest=model_digest(base),
                digest=store.add(make_adapter(folder / "made" / name, seed=number)),
                rank=RANK,
                size_bytes=1,
            )
    finally:
        await conn.close()
    return names
