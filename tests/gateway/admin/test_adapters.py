"""Adapters through the admin API: only an adapter that fits the base model gets in, and a refused one leaves nothing
behind."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import httpx

from adapters.store import AdapterStore
from gateway.db.pool import Database
from tests.gateway.admin.adapter_uploads import CONFIG, WEIGHTS, error_of, upload
from tests.gateway.admin_server import (
    MAX_ADAPTER_BYTES,
    MAX_ADAPTER_RANK,
    AdminServer,
    serve_admin,
    write_adapter,
)
from tests.patience import PATIENCE_S


async def collected(server: AdminServer) -> list[str]:
    """Run the collection of unused content; return the digests that it removed."""
    return await server.services.lifecycle.collector.collect()


async def test_content_makes_versions_and_the_same_content_none(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    first = await upload(operator, acme, "pirate", write_adapter(tmp_path / "a"))
    same = await upload(operator, acme, "pirate", tmp_path / "a")
    second = await upload(operator, acme, "pirate", write_adapter(tmp_path / "b", rank=4))
    assert [reply.status_code for reply in (first, same, second)] == [200, 200, 200]
    assert [(reply.json()["version"], reply.json()["changed"]) for reply in (first, same, second)] == [
        (1, True),
        (1, False),
        (2, True),
    ]
    assert (first.json()["model"], first.json()["rank"]) == ("tiny:pirate", 2)
    (listed,) = (await operator.get(f"{acme}/adapters")).json()["data"]
    assert {**listed, "changed": True, "uploaded_version": 2, "version_state": "ready"} == second.json()
    assert listed["previous_version"] == 1
    assert sorted(server.services.store.digests()) == sorted([first.json()["digest"], second.json()["digest"]])


async def test_removal_frees_the_content_that_no_tenant_shares(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    globex = f"/projects/{(await operator.post('/projects', json={'name': 'globex'})).json()['id']}"
    own = (await upload(operator, acme, "pirate", write_adapter(tmp_path / "a", seed=1))).json()["digest"]
    shared = (await upload(operator, acme, "pirate", write_adapter(tmp_path / "b", seed=2))).json()["digest"]
    await upload(operator, globex, "copy", tmp_path / "b")

    assert (await operator.delete(f"{acme}/adapters/pirate")).json()["deleted"] is True
    assert await collected(server) == [own]
    assert server.services.store.digests() == [shared]
    assert error_of(await operator.delete(f"{acme}/adapters/pirate")) == (404, "name", "not_found")
    assert len((await operator.get(f"{globex}/adapters")).json()["data"]) == 1

    await operator.delete(f"{globex}/adapters/copy")
    assert await collected(server) == [shared]
    assert server.services.store.digests() == []
    again = await upload(operator, acme, "pirate", tmp_path / "a")
    assert (again.json()["version"], server.services.store.digests()) == (1, [own])


async def test_what_does_not_fit_is_refused_with_all_reasons(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    reply = await upload(operator, acme, "wide", write_adapter(tmp_path / "wide", in_features=9))
    assert error_of(reply) == (400, "file", "adapter_rejected")
    assert "layer 0 q_proj" in reply.json()["error"]["message"]
    assert "layer 1 q_proj" in reply.json()["error"]["message"]
    await assert_nothing_is_kept(server, operator, acme)


async def test_a_rank_above_the_engines_is_refused_at_once(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    reply = await upload(operator, acme, "large", write_adapter(tmp_path / "large", rank=MAX_ADAPTER_RANK + 1))
    assert error_of(reply) == (400, "file", "adapter_rejected")
    assert "the adapter's rank is 17, above LORIKEET_MAX_ADAPTER_RANK, which is 16" in reply.json()["error"]["message"]
    await assert_nothing_is_kept(server, operator, acme)


Parts = list[tuple[str, tuple[str | None, bytes]]]


def parts(**changed: bytes | None) -> Parts:
    """Return the parts of a valid form, some of them changed, or left out where None."""
    right: dict[str, bytes | None] = {"name": b"pirate", CONFIG: b"{}", WEIGHTS: b"12345678"}
    return [
        (name, (None if name == "name" else name, content))
        for name, content in (right | changed).items()
        if content is not None
    ]


WRONG_FORMS = [
    (parts(), (400, "file", "adapter_rejected")),
    (parts(name=None), (400, "name", "missing_required_parameter")),
    (parts(**{CONFIG: None}), (400, CONFIG, "missing_required_parameter")),
    (parts(**{WEIGHTS: None}), (400, WEIGHTS, "missing_required_parameter")),
    (parts(name=b"../../etc"), (400, "name", "invalid_value")),
    (parts(name=b"Pirate"), (400, "name", "invalid_value")),
    (parts(name=b"x" * 5000), (400, "name", "invalid_value")),
    (parts(project_id=b"proj_other"), (400, "project_id", "unknown_parameter")),
    ([*parts(), ("name", (None, b"again"))], (400, "name", "invalid_value")),
    (parts(**{WEIGHTS: b"0" * MAX_ADAPTER_BYTES}), (413, None, "request_too_large")),
]


async def test_a_wrong_form_is_refused_by_part_and_leaves_nothing(
    server: AdminServer, operator: httpx.AsyncClient, acme: str
) -> None:
    for form, refusal in WRONG_FORMS:
        assert error_of(await operator.post(f"{acme}/adapters", files=form)) == refusal
        await assert_nothing_is_kept(server, operator, acme)


NOT_FORMS = [
    ("application/json", b"{}"),
    ("multipart/form-data", b"no boundary"),
    ("multipart/form-data; boundary=x", b""),
    ("multipart/form-data; boundary=x", b"--x\r\nno header\r\n\r\n--x--"),
    ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="name"\r\n\r\ncut off'),
]


async def test_what_is_no_form_is_refused(server: AdminServer, operator: httpx.AsyncClient, acme: str) -> None:
    for content_type, body in NOT_FORMS:
        reply = await operator.post(f"{acme}/adapters", content=body, headers={"content-type": content_type})
        assert reply.status_code == 400, body
        await assert_nothing_is_kept(server, operator, acme)


async def assert_nothing_is_kept(server: AdminServer, operator: httpx.AsyncClient, project: str) -> None:
    assert (await operator.get(f"{project}/adapters")).json()["data"] == []
    await collected(server)
    assert list(server.store_dir.iterdir()) == []


async def test_storage_is_limited_and_what_is_refused_leaves_nothing(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    first = await upload(operator, acme, "pirate", write_adapter(tmp_path / "a"))
    limit = {"unit": "storage_bytes", "max": first.json()["size_bytes"] + 1}
    made = (await operator.post(f"{acme}/limits", json=limit)).json()
    assert (made["used"], made["free"]) == (first.json()["size_bytes"], 1)
    refused = await upload(operator, acme, "poet", write_adapter(tmp_path / "b", seed=1))
    assert (refused.status_code, error_of(refused)[1:]) == (429, ("file", "insufficient_quota"))
    await collected(server)
    assert server.services.store.digests() == [first.json()["digest"]]
    assert len((await operator.get(f"{acme}/adapters")).json()["data"]) == 1
    assert (await upload(operator, acme, "copy", tmp_path / "a")).status_code == 200, "the same content counts once"
    await operator.post(f"{acme}/limits", json=limit | {"max": 1 << 30})
    assert (await upload(operator, acme, "poet", tmp_path / "b")).status_code == 200


class SlowStore(AdapterStore):
    """A store that blocks `keep` until its gate is opened.

    most_at_once: the most calls of `keep` at one time.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.gate = threading.Event()
        self.most_at_once = 0
        self._num_inside = 0
        self._lock = threading.Lock()

    def keep(self, folder: Path, digest: str) -> None:
        with self._lock:
            self._num_inside += 1
            self.most_at_once = max(self.most_at_once, self._num_inside)
        try:
            assert self.gate.wait(PATIENCE_S)
            super().keep(folder, digest)
        finally:
            with self._lock:
                self._num_inside -= 1


def num_arrived(folder: Path) -> int:
    """Return the number of uploads whose files are all in the folder."""
    return len(list(folder.glob(f".*/{WEIGHTS}")))


async def test_uploads_hold_no_connection_while_their_files_are_worked_on(database: Database, tmp_path: Path) -> None:
    store, num_uploads = SlowStore(tmp_path / "store"), 9  # one more than there are connections
    folders = [write_adapter(tmp_path / str(seed), seed=seed) for seed in range(num_uploads)]
    async with (
        serve_admin(database, tmp_path / "server", store=store) as server,
        server.client(server.operator_key) as operator,
    ):
        acme = f"/projects/{(await operator.post('/projects', json={'name': 'acme'})).json()['id']}"
        uploads = [asyncio.create_task(upload(operator, acme, f"a{n}", folder)) for n, folder in enumerate(folders)]
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    if num_arrived(tmp_path / "store") == num_uploads and store.most_at_once >= 1:
                        break
                    await asyncio.sleep(0.01)
            async with asyncio.timeout(PATIENCE_S):
                assert (await operator.get(f"{acme}/adapters")).json()["data"] == []
        finally:
            store.gate.set()
        assert {reply.status_code for reply in await asyncio.gather(*uploads)} == {200}
        assert len((await operator.get(f"{acme}/adapters", params={"limit": 100})).json()["data"]) == num_uploads
    assert store.most_at_once == 1


class RacedStore(AdapterStore):
    """A store that loses the first content added, as if another gateway had collected it in between."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.num_added = 0

    def keep(self, folder: Path, digest: str) -> None:
        super().keep(folder, digest)
        self.num_added += 1
        if self.num_added == 1:
            self.remove(digest)


async def test_content_that_is_removed_before_it_is_referred_to_is_put_back(database: Database, tmp_path: Path) -> None:
    store = RacedStore(tmp_path / "store")
    async with (
        serve_admin(database, tmp_path / "server", store=store) as server,
        server.client(server.operator_key) as operator,
    ):
        acme = f"/projects/{(await operator.post('/projects', json={'name': 'acme'})).json()['id']}"
        reply = await upload(operator, acme, "pirate", write_adapter(tmp_path / "a"))
    assert (reply.status_code, store.num_added) == (200, 2)
    assert store.digests() == [reply.json()["digest"]]
