"""Tenants whose adapters change all the time, each changed over the admin API as an operator would."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tests.e2e.signatures.model import PRINTABLE, Signature, write_signature
from tests.e2e.signatures.timeline import Timeline

FILES = ("adapter_config.json", "adapter_model.safetensors")


def signatures(rng: random.Random) -> Iterator[Signature]:
    """Yield random signatures, each once."""
    seen: set[Signature] = set()
    while True:
        first, second, third = rng.sample(PRINTABLE, 3)
        if (signature := (first, second, third)) not in seen:
            seen.add(signature)
            yield signature


class Adapter(msgspec.Struct):
    """The history of one adapter."""

    name: str
    timeline: Timeline = msgspec.field(default_factory=Timeline)
    versions: dict[int, Signature] = {}
    """The signatures of versions that can be asked for, by number."""
    by_version: dict[int, Timeline] = {}
    current: int = 0
    """The number of the current version; 0 without one."""
    previous: int = 0
    """The number of the version that was current before; 0 without one."""


class Tenant:
    """One project with a key, some adapters, and an alias that points at a version of its first one."""

    def __init__(
        self,
        admin: httpx.AsyncClient,
        project_id: str,
        key: str,
        base: str,
        model: Path,
        folder: Path,
        rng: random.Random,
        fresh: Iterator[Signature],
        num_adapters: int,
    ) -> None:
        self.key = key
        self.base = base
        self.alias = Timeline()
        self.adapters = [Adapter(f"a{number}") for number in range(num_adapters)]
        self._admin = admin
        self._path = f"/v1/organization/projects/{project_id}"
        self._model = model
        self._folder = folder
        self._rng = rng
        self._fresh = fresh
        self._aliased = 0
        self.num_changes = 0

    async def begin(self) -> None:
        for adapter in self.adapters:
            await self._upload(adapter)
        await self._move_alias()

    async def change(self) -> None:
        """Make one change of one adapter, or of the alias."""
        adapter = self._rng.choice(self.adapters)
        change = self._rng.choice([self._upload, self._upload, self._stage, self._roll_back, self._delete_old, None])
        if change is None:
            await self._move_alias()
        elif self._rng.random() < 0.1:
            await self._replace(adapter)
        else:
            await change(adapter)
        self.num_changes += 1

    def model_ids(self) -> list[tuple[str, Timeline]]:
        """Return the ids that a client may ask for, each with the answers that the client may get."""
        found = [("alias", self.alias)]
        for adapter in self.adapters:
            model_id = f"{self.base}:{adapter.name}"
            found.append((model_id, adapter.timeline))
            found += [(f"{model_id}@{number}", timeline) for number, timeline in adapter.by_version.items()]
        return found

    async def _upload(self, adapter: Adapter) -> None:
        """Upload a new version, which becomes the current one."""
        signature = next(self._fresh)
        version = max(adapter.by_version, default=0) + 1
        asked_for = adapter.by_version[version] = Timeline()
        with adapter.timeline.changing(signature), asked_for.changing(signature):
            await self._put(adapter, signature, version, promote=True)
        adapter.versions[version] = signature
        adapter.previous, adapter.current = adapter.current, version

    async def _stage(self, adapter: Adapter) -> None:
        """Upload a new version that is promoted later."""
        signature = next(self._fresh)
        version = max(adapter.by_version, default=0) + 1
        asked_for = adapter.by_version[version] = Timeline()
        with asked_for.changing(signature):
            await self._put(adapter, signature, version, promote=False)
        adapter.versions[version] = signature
        with adapter.timeline.changing(signature):
            await self._post(f"/adapters/{adapter.name}/versions/{version}/promote")
        adapter.previous, adapter.current = adapter.current, version

    async def _roll_back(self, adapter: Adapter) -> None:
        if adapter.previous in adapter.versions:
            with adapter.timeline.changing(adapter.versions[adapter.previous]):
                await self._post(f"/adapters/{adapter.name}/rollback")
            adapter.previous, adapter.current = adapter.current, adapter.previous

    async def _delete_old(self, adapter: Adapter) -> None:
        """Retire one of the versions that nothing points at."""
        aliased = self._aliased if adapter is self.adapters[0] else 0
        if old := [number for number in adapter.versions if number not in (adapter.current, adapter.previous, aliased)]:
            version = self._rng.choice(old)
            with adapter.by_version[version].changing(None):
                await self._post(f"/adapters/{adapter.name}/versions/{version}/retire")
            await self._delete(f"/adapters/{adapter.name}/versions/{version}")
            del adapter.versions[version]

    async def _replace(self, adapter: Adapter) -> None:
        """Replace an adapter by another one of the same name; an adapter that the alias points at stays."""
        if adapter is self.adapters[0]:
            return
        with ExitStack() as stack:
            for timeline in (adapter.timeline, *adapter.by_version.values()):
                stack.enter_context(timeline.changing(None))
            await self._delete(f"/adapters/{adapter.name}")
        # The new adapter's versions begin at 1: an id with a number may mean either adapter for a while.
        adapter.versions.clear()
        signature = next(self._fresh)
        first = adapter.by_version.setdefault(1, Timeline())
        with adapter.timeline.changing(signature), first.changing(signature):
            await self._put(adapter, signature, 1, promote=True)
        adapter.by_version = {1: first}
        adapter.versions[1] = signature
        adapter.previous, adapter.current = 0, 1

    async def _move_alias(self) -> None:
        adapter = self.adapters[0]
        version = self._rng.choice(list(adapter.versions))
        body = {"adapter": adapter.name, "version": version}
        with self.alias.changing(adapter.versions[version]):
            if self._aliased:
                await self._post("/aliases/alias", json=body)
            else:
                await self._post("/aliases", json={"name": "alias", **body})
        self._aliased = version

    async def _put(self, adapter: Adapter, signature: Signature, version: int, *, promote: bool) -> None:
        folder = self._folder / f"{adapter.name}-{self.num_changes}-{version}"
        await asyncio.to_thread(write_signature, self._model, signature, folder)
        files = {name: (folder / name).read_bytes() for name in FILES}
        data = {"name": adapter.name, "promote": str(promote).lower()}
        reply = await self._post("/adapters", data=data, files=files)
        assert (reply["version_state"], reply["changed"]) == ("ready", True), reply
        shutil.rmtree(folder)

    async def _post(self, path: str, **content: Any) -> dict[str, Any]:
        while True:
            reply = await self._admin.post(self._path + path, **content)
            if reply.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                break
            await asyncio.sleep(float(reply.headers["retry-after"]))  # inspections have what other work leaves
        assert reply.status_code < 300, (path, content.get("json"), reply.text)
        found: dict[str, Any] = reply.json()
        return found

    async def _delete(self, path: str) -> None:
        reply = await self._admin.delete(self._path + path)
        assert reply.status_code < 300, (path, reply.text)
