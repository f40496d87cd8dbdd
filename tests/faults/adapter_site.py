"""A gateway that is killed while adapters are uploaded, promoted and removed, and the checks after its restart.

Each operation records what its client was promised: an answer counts, whatever happens after it.
"""

from __future__ import annotations

import asyncio
import operator
import random
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import msgspec

from adapters.store import AdapterStore
from gateway.adapters.collector import Collector
from gateway.adapters.uploads import Uploads
from gateway.db.pool import Database
from gateway.settings import Settings
from tests.faults.processes import Gateway
from tests.gateway.admin.adapter_uploads import archive_of, upload
from tests.gateway.admin_server import write_adapter
from tests.gateway.live import BASE, FakeEngine, make_operator_key, make_tenant
from tests.gateway.model_folder import make_model_folder
from tests.patience import PATIENCE_S

STEADY = "steady"
"""The name of the adapter whose two versions are promoted in turns."""

AFTER_CONTENT_S = 0.1
"""Seconds within which an upload whose content has been stored is referred to, probed and promoted."""


class Promises(msgspec.Struct):
    """The promises in replies before the gateway was killed."""

    ready: list[tuple[str, int]] = []
    """Adapters and versions that a reply called ready."""
    current: int | None = None
    """The version of `STEADY` that a reply called current."""
    gone: list[str] = []
    """Names of adapters whose removal was confirmed."""


class UnfinishedTasks(msgspec.Struct):
    """The numbers of unfinished tasks after the kills."""

    num_claims: int = 0
    """Probes that a dead gateway had begun."""
    num_imports: int = 0
    """Imports that no gateway worked on."""
    num_contents: int = 0
    """Contents of the store that no version referred to."""

    def __add__(self, other: UnfinishedTasks) -> UnfinishedTasks:
        return UnfinishedTasks(*map(operator.add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))


class AdapterSite:
    """A gateway, its fake engine, which answers by the adapter's digest alone, and clients. Usable between `start` and
    `close`."""

    def __init__(self, folder: Path, dsn: str) -> None:
        model_dir = make_model_folder(folder / "model")
        self.settings = Settings(data_dir=folder / "data", model=str(model_dir), model_name=BASE, drain_seconds=10)
        self.settings.run_dir.mkdir(parents=True)
        self.gateway = Gateway(self.settings, dsn, 0)
        self.promised = Promises()
        self._dsn = dsn
        self._folder = folder
        self._engine = FakeEngine(self.settings.engine.endpoint, model_dir)
        self._num_made = 0

    async def start(self) -> None:
        tenant = await make_tenant(self._dsn, "acme", "first", "1")
        await self._execute("UPDATE adapters SET removed_at = now()")  # the store has none of its content
        self._operator = _client(self.gateway.port, await make_operator_key(self._dsn))
        self._tenant = _client(self.gateway.port, tenant.key)
        self._project = f"/v1/organization/projects/{tenant.project_id}"
        await self.restart()
        for _ in range(2):
            assert (await upload(self._operator, self._project, STEADY, self._content())).status_code == 200

    async def close(self) -> None:
        self.gateway.close()
        self._engine.kill()
        await self._operator.aclose()
        await self._tenant.aclose()

    async def restart(self) -> None:
        self.gateway.start()
        await asyncio.to_thread(self.gateway.wait_ready)

    # what clients do

    async def upload(self, name: str) -> None:
        reply = await upload(self._operator, self._project, name, self._content())
        self._note(name, reply)

    async def upload_in_pieces(self, name: str) -> None:
        content = archive_of(self._content())
        wanted = {"name": name, "size_bytes": len(content)}
        made = await self._operator.post(f"{self._project}/adapter_imports", json=wanted)
        path, half = f"{self._project}/adapter_imports/{made.json()['id']}", len(content) // 2
        for offset, piece in ((0, content[:half]), (half, content[half:])):
            await self._operator.patch(path, content=piece, headers={"upload-offset": str(offset)})
        self._note(name, await self._operator.post(f"{path}/complete"))

    async def promote(self, version: int) -> None:
        reply = await self._operator.post(f"{self._project}/adapters/{STEADY}/versions/{version}/promote")
        assert reply.status_code == 200, reply.text
        self.promised.current = version

    async def delete(self, name: str) -> None:
        reply = await self._operator.delete(f"{self._project}/adapters/{name}")
        assert reply.status_code == 200, reply.text
        self.promised.gone.append(name)

    def _note(self, name: str, reply: httpx.Response) -> None:
        assert reply.status_code == 200, reply.text
        if reply.json()["version_state"] == "ready":
            self.promised.ready.append((name, reply.json()["uploaded_version"]))

    # what must hold

    async def check(self, promised: Promises, touched: Collection[str]) -> None:
        """Check a gateway that has just started again against what clients were promised.

        touched: names of the adapters that were worked on.
        """
        found = await self._verify()
        assert (found["missing"], found["damaged"]) == ([], [])
        listed = {adapter["name"]: adapter for adapter in await self._list("adapters")}
        assert not set(promised.gone) & set(listed)
        assert promised.current in (None, listed[STEADY]["version"])
        for name, version in promised.ready:
            assert (await self._version(name, version))["state"] == "ready"
        for name in listed.keys() & touched:
            await self._check_servable(name)

    async def settle(self) -> UnfinishedTasks:
        """Complete all interrupted work by moving time forward; return what there was.

        Checks that nothing is left over.
        """
        num_claimed = await self._execute("UPDATE adapter_versions SET claimed_at = NULL WHERE claimed_at IS NOT NULL")
        num_imports = await self._execute(
            "UPDATE adapter_imports SET updated_at = now() - interval '2 days' WHERE state IN ('receiving', 'uploaded')"
        )
        async with asyncio.timeout(PATIENCE_S):
            while True:
                states = await self._fetch(
                    "SELECT DISTINCT v.state FROM adapter_versions v JOIN adapters a"
                    " ON a.id = v.adapter_id WHERE a.removed_at IS NULL"
                )
                if states <= {"ready", "rejected"}:
                    break
                await asyncio.sleep(0.1)
        store, uploads_dir = AdapterStore(Path(self.settings.engine.adapter_store)), self.settings.data_dir / "uploads"
        async with await Database.connect(self._dsn, max_size=2) as database:
            uploads = Uploads(database, uploads_dir)
            collector = Collector(database, store, uploads, resident=frozenset, unload=_do_nothing, grace_s=0.0)
            num_orphans = len(await collector.collect())
        assert list(uploads_dir.glob("*")) == []
        assert await self._fetch("SELECT DISTINCT state FROM adapter_imports") <= {"done", "failed", "rejected"}
        found = await self._verify()
        assert (found["missing"], found["damaged"], found["num_unreferenced"]) == ([], [], 0)
        referenced = await self._fetch(
            "SELECT DISTINCT v.digest FROM adapter_versions v JOIN adapters a"
            " ON a.id = v.adapter_id WHERE a.removed_at IS NULL AND v.state = 'ready'"
        )
        assert set(store.digests()) == referenced
        await self.check(Promises(), await self.names())
        return UnfinishedTasks(num_claimed, num_imports, num_orphans)

    def num_contents(self) -> int:
        """Return the number of contents in the store."""
        return sum(not path.name.startswith(".") for path in Path(self.settings.engine.adapter_store).glob("*"))

    async def imports_at_work(self) -> set[str]:
        """Return the ids of imports that have not ended, those of dead gateways included."""
        return await self._fetch("SELECT id FROM adapter_imports WHERE state IN ('receiving', 'uploaded')")

    async def names(self) -> list[str]:
        return [adapter["name"] for adapter in await self._list("adapters")]

    async def _check_servable(self, name: str) -> None:
        """Check that each ready version answers under its own number, and that every other version is not found.

        A gateway that has just started goes on with imports: where one ends meanwhile, the check begins anew.
        """
        answers, expected = dict[str, tuple[int, str | None]](), await self._servable(name)
        while set(answers) != set(expected):
            answers = {asked: await self._ask(asked) for asked in expected}
            if (now := await self._servable(name)) != expected:
                answers, expected = {}, now
        assert answers == {
            asked: (200, f"{name}@{number}") if number else (404, None) for asked, number in expected.items()
        }

    async def _servable(self, name: str) -> dict[str, int | None]:
        """Return the number of the version that is to answer, by each name that an adapter can be asked for under."""
        model = f"{BASE}:{name}"
        (current,) = [each["version"] for each in await self._list("adapters") if each["name"] == name]
        servable: dict[str, int | None] = {model: current}
        for version in await self._list(f"adapters/{name}/versions"):
            number = version["version"]
            servable[f"{model}@{number}"] = number if version["state"] == "ready" else None
        return servable

    async def _ask(self, model: str) -> tuple[int, str | None]:
        """Send a chat to an adapter; return the reply's status and the version that answered."""
        body = {"model": model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        reply = await self._tenant.post("/v1/chat/completions", json=body)
        return reply.status_code, reply.headers.get("x-lorikeet-adapter")

    async def _verify(self) -> dict[str, Any]:
        reply = await self._operator.post("/v1/organization/adapters/verify")
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found

    async def _list(self, what: str) -> list[dict[str, Any]]:
        reply = await self._operator.get(f"{self._project}/{what}", params={"limit": 100})
        assert reply.status_code == 200, reply.text
        found: list[dict[str, Any]] = reply.json()["data"]
        return found

    async def _version(self, name: str, version: int) -> dict[str, Any]:
        reply = await self._operator.get(f"{self._project}/adapters/{name}/versions/{version}")
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found

    def _content(self) -> Path:
        """Return a folder with a new adapter whose content is unique."""
        self._num_made += 1
        folder = self._folder / "made" / str(self._num_made)
        return write_adapter(folder, seed=self._num_made, in_features=32, out_features=32, num_layers=1)

    async def _execute(self, sql: str) -> int:
        """Run a statement; return the number of rows that it changed."""
        conn = await asyncpg.connect(self._dsn)
        try:
            return int((await conn.execute(sql)).rpartition(" ")[2])
        finally:
            await conn.close()

    async def _fetch(self, sql: str) -> set[str]:
        conn = await asyncpg.connect(self._dsn)
        try:
            return {row[0] for row in await conn.fetch(sql)}
        finally:
            await conn.close()


async def kill_amid_changes(site: AdapterSite, seed: int, span_s: float) -> None:
    """Kill the gateway amid an upload, a promotion and a removal, at a moment drawn from the seed; start it again.

    span_s: the seconds within which the moment is drawn.
    """
    chance = random.Random(seed)
    name = chance.choice(["grown", f"a{seed}"])
    work = [site.promote(1 + seed % 2), chance.choice([site.upload, site.upload_in_pieces])(name)]
    if removable := [each for each in await site.names() if each not in (STEADY, name)]:
        work.append(site.delete(chance.choice(removable)))
    site.promised, num_before, imports_before = Promises(), site.num_contents(), await site.imports_at_work()
    tasks = [asyncio.create_task(each) for each in work]
    if seed % 4 == 3:  # however long anything takes here, this one meets an import
        async with asyncio.timeout(PATIENCE_S):
            while not (await site.imports_at_work() - imports_before or all(task.done() for task in tasks)):
                pass
    elif chance.random() < 0.5:
        await asyncio.sleep(chance.uniform(0.0, span_s))
    else:  # the steps after the inspection are short beside it
        await _wait_until(lambda: site.num_contents() > num_before or all(task.done() for task in tasks))
        await asyncio.sleep(chance.uniform(0.0, AFTER_CONTENT_S))
    await asyncio.to_thread(site.gateway.kill)
    await site.restart()
    # Requests that the killed gateway had not accepted wait on the socket for the next one, and count as well.
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if outcome is not None and not isinstance(outcome, httpx.TransportError):
            raise outcome
    await site.check(site.promised, {STEADY, name})


async def _wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if condition():
                break
            await asyncio.sleep(0.001)


def _client(port: int, key: str) -> httpx.AsyncClient:
    # Connections of a gateway that is killed are no use to the next one.
    limits = httpx.Limits(max_keepalive_connections=0)
    headers = {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, limits=limits, timeout=PATIENCE_S)


async def _do_nothing(key: str) -> None:
    """Ignore an unloaded adapter, since there is no engine."""
