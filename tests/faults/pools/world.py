"""Two base models with replicas each and two gateways, all in processes of their own, with adapters whose answers tell
which adapter made them.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import asyncpg
import httpx
import msgspec

from engine.config import model_digest
from engine.fake import fake_token
from engine.protocol import GenerateRequest, SamplingParams
from gateway.db.adapters import adapter_versions
from gateway.db.pools.replicas import add_running_replica
from gateway.db.pools.served import list_served
from gateway.pools.first_pool import make_pool
from gateway.settings import Settings
from gateway.support.host import allow_keys, host_keys, link_folder
from tests.gateway.model_folder import CONTEXT, make_model_folder
from tests.installation.engines import FakeEngine
from tests.installation.gateway_process import GatewayProcess
from tests.installation.tenants import Key, make_key
from tests.patience import PATIENCE_S

BASES = ("small", "large")
NUM_ADAPTERS = 8
"""The number of adapters of each base."""


class CheckedRequest(msgspec.Struct, frozen=True):
    """A request, and the answers that it may get."""

    model: str
    prompt: list[int]
    max_tokens: int
    stream: bool
    answers: list[list[int]]
    """The token ids of right answers: one, or several while the base behind the model's name changes."""


def asked_of_fake(model: str, rotation: int, prompt: list[int], max_tokens: int, *, stream: bool) -> CheckedRequest:
    """Return a request to a fake engine.

    rotation: the rotation of the adapter, as `rotation` returns it; 0 is the base. stream: True: the reply is streamed.
    """
    adapter = f"{rotation:08x}" if rotation else ""
    request = GenerateRequest("", prompt, SamplingParams(max_tokens=max_tokens), "", adapter)
    answer = [fake_token(request, position) for position in range(max_tokens)]
    return CheckedRequest(model, prompt, max_tokens, stream, [answer])


class Engines:
    """The replicas of both bases, each of which can be killed, frozen and started again."""

    def __init__(
        self,
        run_dir: Path,
        folders: dict[str, Path],
        num_replicas: int,
        flags: tuple[str, ...],
        host: str = "",
        key: str | None = None,
    ) -> None:
        self.key = key
        """The public key that the engines prove; None for engines without keys."""
        self.addresses = {
            base: [
                f"tcp://{host}:{free_port(host)}" if host else f"ipc://{run_dir}/{base}{number}.sock"
                for number in range(num_replicas)
            ]
            for base in BASES
        }
        self.of_base = {
            base: [FakeEngine(address, folders[base], *flags) for address in self.addresses[base]] for base in BASES
        }

    def kill(self) -> None:
        for engines in self.of_base.values():
            for engine in engines:
                engine.kill()


class World:
    """The running processes, and one tenant's key."""

    def __init__(self, dsn: str, key: Key, gateways: list[GatewayProcess]) -> None:
        self.dsn = dsn
        self.key = key
        self.gateways = gateways
        self.outcomes: Counter[str] = Counter()
        self.answered: dict[str, int] = {}
        """Completion tokens of each whole answer, by request id."""
        self.by_answer: Counter[tuple[str, int]] = Counter()
        """The number of times that each model gave each of the answers that it might give."""

    def random_request(self, rng: random.Random) -> CheckedRequest:
        """Return a request to one of the bases or to one of their adapters."""
        base, number = rng.choice(BASES), rng.randrange(NUM_ADAPTERS + 1)
        model = f"{base}:{name_of(base, number)}" if number else base
        prompt = [rng.randrange(3, 250) for _ in range(rng.choice((11, 23, 61)))]
        return asked_of_fake(model, rotation(base, number), prompt, rng.randrange(4, 24), stream=rng.random() < 0.3)

    async def ask(self, http: httpx.AsyncClient, asked: CheckedRequest, gateway: GatewayProcess) -> str:
        """Send a request; record and return its outcome in words.

        Raises AssertionError: for an answer that is not the model's own.
        """
        outcome = await self._outcome(http, asked, gateway)
        self.outcomes[outcome] += 1
        return outcome

    async def _outcome(self, http: httpx.AsyncClient, asked: CheckedRequest, gateway: GatewayProcess) -> str:
        body = {
            "model": asked.model,
            "prompt": asked.prompt,
            "max_tokens": asked.max_tokens,
            "return_token_ids": True,
            "ignore_eos": True,
            "temperature": 0,
            "stream": asked.stream,
        }
        try:
            reply = await http.post(f"{gateway.url}/v1/completions", json=body, headers=self.key.headers)
        except httpx.TimeoutException:
            return "no answer"
        except httpx.TransportError:
            return "cut off"
        if reply.status_code != 200:
            return f"{reply.status_code} {reply.json()['error']['code']}"
        if asked.stream:
            ids, error = _streamed(reply.text)
            if error:
                assert ids in [answer[: len(ids)] for answer in asked.answers], (asked, ids)
                return "ended after its text had begun" if ids else f"stream {error}"
        else:
            ids = reply.json()["choices"][0]["token_ids"]
        assert ids in asked.answers, (asked, ids)
        self.answered[reply.headers["x-request-id"]] = len(ids)
        self.by_answer[asked.model, asked.answers.index(ids)] += 1
        return "answered"


def free_port(host: str) -> int:
    """Return a port of this address that nothing listens on."""
    with socket.create_server((host, 0)) as listener:
        return int(listener.getsockname()[1])


def rotation(base: str, number: int) -> int:
    """Return the number that distinguishes adapter `number` of a base from all others; 0 is the base itself."""
    return 0 if not number else 100 * (BASES.index(base) + 1) + number


def name_of(base: str, number: int) -> str:
    """Return the name of adapter `number` of a base: a project's names are unique over its bases."""
    return f"{base}-{number}"


def _streamed(text: str) -> tuple[list[int], str]:
    """Return the token ids of a stream, and the code of the error that ended it, if one did."""
    ids: list[int] = []
    for line in text.split("\n"):  # text may hold other ends of lines, such as U+2028
        if line.startswith("data: {"):
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                return ids, event["error"]["code"]
            for choice in event["choices"]:
                ids += choice.get("token_ids") or []
    return ids, "" if text.rstrip().endswith("[DONE]") else "cut"


@contextmanager
def running_world(
    dsn: str,
    folder: Path,
    *,
    num_replicas: int = 2,
    engine_flags: tuple[str, ...] = (),
    gateways: Sequence[Mapping[str, Any]] = ({}, {}),
    host: str = "",
    guarded: bool = False,
    context: int = CONTEXT,
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[tuple[World, Engines]]:
    """Give a world over a migrated database, which is gone when the context is left.

    gateways: keyword arguments of each `GatewayProcess`. host: the address that engines listen at; without one they
    have sockets in the folder. guarded: engines take connections of the gateways' host alone. context: the context of
    both bases, in tokens. changes: fields of `Settings` in place of the usual ones. num_replicas: the replicas of each
    pool. engine_flags: further flags of the engines.
    """
    folders = {base: make_model_folder(folder / base, context) for base in BASES}
    config = json.loads((folders["large"] / "config.json").read_text())
    (folders["large"] / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2, "hidden_size": 64}))
    usual = {"data_dir": folder, "model": str(folders["small"]), "model_name": "small", "drain_seconds": 5.0}
    settings = Settings(**(usual | dict(changes)))
    settings.run_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        keys = None
        if guarded:
            keys = host_keys(folder)
            allow_keys(folder, [keys.public])
            engine_flags = (*engine_flags, "--link-dir", str(link_folder(folder)))
        engines = Engines(
            settings.run_dir, folders, num_replicas, engine_flags, host, None if keys is None else keys.public
        )
        stack.callback(engines.kill)
        key = asyncio.run(_rows(dsn, folders, engines))
        processes = []
        for number, options in enumerate(gateways):
            process = GatewayProcess(settings, dsn, number, **options)
            stack.callback(process.close)
            process.start()
            processes.append(process)
        for process in processes:
            process.wait_ready()
        world = World(dsn, key, processes)
        asyncio.run(_all_connected(world))
        yield world, engines


async def _rows(dsn: str, folders: dict[str, Path], engines: Engines) -> Key:
    key = await make_key(dsn, "acme")
    conn = await asyncpg.connect(dsn)
    try:
        for base, folder in folders.items():
            first, *others = engines.addresses[base]
            digest = model_digest(folder)
            async with conn.transaction():
                assert await make_pool(conn, base, model=base, folder=folder, base_digest=digest, address=first)
            await conn.execute("UPDATE replicas SET public_key = $1", engines.key)
            pool = next(each for each in await list_served(conn) if each.row.name == base)
            for address in others:
                await add_running_replica(conn, pool.row.id, 1, address, engines.key)
            for number in range(1, NUM_ADAPTERS + 1):
                await adapter_versions.put_adapter(
                    conn,
                    key.project_id,
                    name_of(base, number),
                    base_digest=digest,
                    digest=f"{rotation(base, number):08x}".ljust(64, "a"),
                    rank=8,
                    size_bytes=1,
                )
    finally:
        await conn.close()
    return key


async def _all_connected(world: World) -> None:
    """Wait until each gateway has answered for each base."""
    async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http, asyncio.timeout(PATIENCE_S):
        for gateway in world.gateways:
            for base in BASES:
                asked = asked_of_fake(base, 0, [5, 6, 7], 1, stream=False)
                before = world.outcomes["answered"]
                while world.outcomes["answered"] == before:
                    await world.ask(http, asked, gateway)
                    await asyncio.sleep(0.05)
    world.outcomes.clear()
    world.answered.clear()
