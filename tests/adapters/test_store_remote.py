"""A store in a bucket holds whole adapters or nothing, and a machine's cache of it is bounded and never half
written."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import pytest
from moto.server import ThreadedMotoServer
from obstore.store import MemoryStore, ObjectStore

from adapters.digest import canonical_digest
from adapters.errors import AdapterDamaged, AdapterMissing, AdapterRejected, StoreFailure
from adapters.remote_store import RemoteStore
from adapters.store import AdapterStore
from adapters.stores import open_store
from tests.adapters.folders import CONFIG, good_tensors, tensor, tensor_name, write_adapter
from tests.modes import open_to_others

ABSENT = "0" * 64
URL = "s3://bucket/some/where"
MANY_BYTES = 1 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Give a real S3 server's URL, with a bucket."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with contextlib.closing(http.client.HTTPConnection(host, port)) as connection:
        connection.request("PUT", "/bucket")
        assert connection.getresponse().status == 200
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give the URL of S3, which the environment names, too. Each test leaves the bucket empty."""
    for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test"), ("REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    return server


@pytest.fixture
def bucket() -> ObjectStore:
    return MemoryStore()


def adapter(root: Path, seed: int) -> Path:
    tensors = good_tensors() | {tensor_name(0, "self_attn.q_proj", "B"): tensor(8, 2, seed=seed)}
    return write_adapter(root / f"adapter-{seed}", tensors=tensors)


def cached_digests(root: Path) -> list[str]:
    return AdapterStore(root).digests()


def test_what_one_machine_adds_another_reads(s3: str, tmp_path: Path) -> None:
    here, there = (open_store(URL, tmp_path / name, MANY_BYTES) for name in ("here", "there"))
    digest = here.add(adapter(tmp_path, 1))
    assert there.holds(digest) and there.digests() == [digest]
    with there.reading(digest) as folder:
        assert canonical_digest(folder) == digest
        assert sorted(path.name for path in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    there.verify(digest)
    assert there.size_bytes(digest) == here.size_bytes(digest) > 0
    there.remove(digest)
    assert not here.holds(digest) and here.digests() == []
    for call in (there.path, there.remove, there.size_bytes, there.verify):
        with pytest.raises(AdapterMissing):
            call(digest)


def test_a_large_adapter_goes_in_parts_and_comes_back_whole(s3: str, tmp_path: Path) -> None:
    rank, width = 256, 24_000
    tensors = {
        tensor_name(0, "self_attn.q_proj", "A"): tensor(rank, width),
        tensor_name(0, "self_attn.q_proj", "B"): tensor(8, rank),
    }
    folder = write_adapter(tmp_path / "large", {**CONFIG, "r": rank}, tensors)
    digest = open_store(URL, tmp_path / "here", MANY_BYTES).add(folder)
    there = open_store(URL, tmp_path / "there", MANY_BYTES)
    there.verify(digest)
    with there.reading(digest) as found:
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            assert (found / name).read_bytes() == (folder / name).read_bytes()
    there.remove(digest)


def test_a_bucket_that_is_not_there_is_named_as_the_reason(s3: str, tmp_path: Path) -> None:
    store = open_store("s3://another", tmp_path / "cache", MANY_BYTES)
    with pytest.raises(StoreFailure, match="bucket does not exist"):
        store.add(adapter(tmp_path, 1))
    with pytest.raises(StoreFailure, match="could not be listed"):
        store.digests()


@pytest.mark.parametrize("url", ["ftp://host/path", "https://bucket.example/x", "s3://"])
def test_only_urls_of_s3_are_buckets(url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreFailure, match=url):
        open_store(url, tmp_path / "cache", 0)


def test_a_path_is_a_folder(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"), tmp_path / "cache", 0)
    digest = store.add(adapter(tmp_path, 1))
    assert cached_digests(tmp_path / "store") == [digest]
    assert not (tmp_path / "cache").exists()


def test_the_same_content_is_sent_again_so_that_the_time_does_not_tell(bucket: ObjectStore, tmp_path: Path) -> None:
    store = RemoteStore(bucket, tmp_path / "cache", MANY_BYTES)
    digest = store.add(adapter(tmp_path, 1))
    before = obstore.head(bucket, f"{digest}.tar")
    twin = adapter(tmp_path / "twin", 1)
    (twin / "README.md").write_text("hello")
    assert store.add(twin) == digest
    after = obstore.head(bucket, f"{digest}.tar")
    assert after["e_tag"] != before["e_tag"], "a write of its own"
    assert (after["size"], store.digests()) == (before["size"], [digest])


def test_adding_an_adapter_replaces_its_damaged_content(bucket: ObjectStore, tmp_path: Path) -> None:
    """Damaged content in the bucket and in the cache is replaced."""
    store = RemoteStore(bucket, tmp_path / "cache", MANY_BYTES)
    digest = store.add(adapter(tmp_path, 1))
    obstore.put(bucket, f"{digest}.tar", b"?")
    (store.path(digest) / "adapter_config.json").write_text("{}")
    assert store.add(tmp_path / "adapter-1") == digest
    store.verify(digest)
    assert canonical_digest(store.path(digest)) == digest


def test_an_upload_that_breaks_off_leaves_nothing(s3: str, tmp_path: Path) -> None:
    store = open_store(URL, tmp_path / "cache", MANY_BYTES)
    with store.workspace() as workspace:
        folder = adapter(workspace, 1)
        digest = canonical_digest(folder)
        (folder / "adapter_model.safetensors").unlink()  # found when the first part is on its way
        with pytest.raises((StoreFailure, OSError)):
            store.keep(folder, digest)
    assert store.digests() == [] and cached_digests(tmp_path / "cache") == []


def test_a_refused_adapter_leaves_nothing_behind(bucket: ObjectStore, tmp_path: Path) -> None:
    store = RemoteStore(bucket, tmp_path / "cache", MANY_BYTES)
    with pytest.raises(AdapterRejected, match="DoRA"):
        store.add(write_adapter(tmp_path / "bad", {**CONFIG, "use_dora": True}))
    assert store.digests() == [] and cached_digests(tmp_path / "cache") == []


@pytest.mark.parametrize("name", ["", "..", "../adapter", "a" * 63, "A" * 64, "a" * 64 + "\n"])
def test_only_digests_become_names(name: str, bucket: ObjectStore, tmp_path: Path) -> None:
    store = RemoteStore(bucket, tmp_path / "cache", MANY_BYTES)
    assert not store.holds(name)
    for call in (store.path, store.remove, store.size_bytes, store.verify):
        with pytest.raises(AdapterMissing):
            call(name)


@pytest.mark.parametrize("damage", ["another", "garbage", "cut short", "empty"])
def test_an_object_that_is_not_what_its_name_says_is_never_read(
    damage: str, bucket: ObjectStore, tmp_path: Path
) -> None:
    store = RemoteStore(bucket, tmp_path / "cache", MANY_BYTES)
    digest, other = store.add(adapter(tmp_path, 1)), store.add(adapter(tmp_path, 2))
    whole = bytes(obstore.get(bucket, f"{other}.tar").bytes())
    content = {"another": whole, "garbage": b"?" * 3000, "cut short": whole[:1200], "empty": b""}[damage]
    obstore.put(bucket, f"{digest}.tar", content)
    elsewhere = RemoteStore(bucket, tmp_path / "elsewhere", MANY_BYTES)
    for call in (elsewhere.verify, elsewhere.path, store.verify):
        with pytest.raises(AdapterDamaged, match=digest):
            call(digest)
    assert cached_digests(tmp_path / "elsewhere") == []
    assert store.path(digest).exists(), "what came whole stays"


def test_the_least_recently_read_adapters_leave_the_cache(bucket: ObjectStore, tmp_path: Path) -> None:
    store = RemoteStore(bucket, tmp_path / "cache", MANY_BYTES)
    first, second, third = (store.add(adapter(tmp_path, seed)) for seed in range(3))
    num_bytes = store.size_bytes(first)
    small = RemoteStore(bucket, tmp_path / "small", 2 * num_bytes)
    for digest in (first, second, first, third):
        with small.reading(digest):
            pass
    assert cached_digests(tmp_path / "small") == sorted([first, third])


def test_an_adapter_that_is_being_read_stays_in_the_cache(bucket: ObjectStore, tmp_path: Path) -> None:
    """Two stores over one folder stand for two processes, since locks belong to open files, not to processes."""
    store, neighbor = (RemoteStore(bucket, tmp_path / "cache", 1) for _ in range(2))
    digests = [store.add(adapter(tmp_path, seed)) for seed in range(3)]
    with store.reading(digests[0]) as folder:
        for digest in digests[1:]:
            with neighbor.reading(digest):
                assert canonical_digest(folder) == digests[0]
    with store.reading(digests[1]):
        pass
    assert cached_digests(tmp_path / "cache") == [digests[1]]


def test_readers_and_evictions_at_once_never_see_half_an_adapter(bucket: ObjectStore, tmp_path: Path) -> None:
    maker = RemoteStore(bucket, tmp_path / "maker", MANY_BYTES)
    digests = [maker.add(adapter(tmp_path, seed)) for seed in range(4)]
    start = threading.Barrier(4)

    def read(reader: int) -> int:
        store = RemoteStore(bucket, tmp_path / "cache", maker.size_bytes(digests[0]))
        start.wait()
        for turn in range(30):
            digest = digests[(turn * (reader + 1)) % 4]
            with store.reading(digest) as folder:
                assert canonical_digest(folder) == digest
        return 30

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(read, range(4))) == 120
    assert not list((tmp_path / "cache").glob(".temporary-*"))


def test_a_bucket_that_is_away_takes_nothing_from_the_cache(s3: str, tmp_path: Path, monkeypatch) -> None:
    digest = open_store(URL, tmp_path / "cache", MANY_BYTES).add(adapter(tmp_path, 1))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # discard: nobody listens
    away = open_store(URL, tmp_path / "cache", MANY_BYTES)
    with away.reading(digest) as folder:
        assert canonical_digest(folder) == digest
    with pytest.raises(StoreFailure, match="could not be read"):
        away.path(ABSENT)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    open_store(URL, tmp_path / "cache", MANY_BYTES).remove(digest)


def test_what_a_reader_finds_damaged_comes_from_the_bucket_again(bucket: ObjectStore, tmp_path: Path) -> None:
    store = RemoteStore(bucket, tmp_path / "cache", MANY_BYTES)
    digest = store.add(adapter(tmp_path, 1))
    (store.path(digest) / "adapter_config.json").write_text("{}")
    with pytest.raises(AdapterDamaged), store.reading(digest):
        raise AdapterDamaged(digest, "has changed")
    with store.reading(digest) as folder:
        assert canonical_digest(folder) == digest


def test_nobody_else_on_the_machine_reads_the_cache(bucket: ObjectStore, tmp_path: Path) -> None:
    digest = RemoteStore(bucket, tmp_path / "here", MANY_BYTES).add(adapter(tmp_path, 1))
    with RemoteStore(bucket, tmp_path / "there", MANY_BYTES).reading(digest):
        assert cached_digests(tmp_path / "there") == [digest]
    assert open_to_others(tmp_path / "here") == open_to_others(tmp_path / "there") == []
