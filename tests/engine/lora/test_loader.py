"""Each adapter is read once, takes the bytes of its true ranks, and is refused by name when it does not fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from obstore.store import MemoryStore
from safetensors.torch import save_file

from adapters.errors import AdapterDamaged, AdapterMissing, AdapterRejected
from adapters.ref import content_key
from adapters.remote_store import RemoteStore
from adapters.store import AdapterStore
from engine.config import ModelConfig, RopeParameters
from engine.lora.layer import AdapterLayout, LoadedAdapter
from engine.lora.loader import AdapterLoader, HostTier, loading_executor

MODEL = ModelConfig("llama", 100, 16, 24, 2, 4, 2, 4, 1e-6, RopeParameters(1e4), 64, True)


class Files:
    """A store with adapters on q_proj and up_proj."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.store = AdapterStore(root / "store")

    def add(self, rank: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> str:
        folder = self._root / f"adapter-{rank}-{scale}"
        folder.mkdir()
        tensors = {}
        for layer in range(2):
            for block, name in (("self_attn", "q_proj"), ("mlp", "up_proj")):
                width, height = MODEL.adapter_targets()[name]
                prefix = f"base_model.model.model.layers.{layer}.{block}.{name}"
                tensors[f"{prefix}.lora_A.weight"] = torch.randn(rank, width).to(dtype) * scale
                tensors[f"{prefix}.lora_B.weight"] = torch.randn(height, rank).to(dtype) * scale
        save_file(tensors, folder / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": ["q_proj", "up_proj"]}
        (folder / "adapter_config.json").write_text(json.dumps(config))
        return self.store.add(folder)

    def loader(self, dtype: torch.dtype = torch.float32, host_bytes: int = 1 << 20) -> AdapterLoader:
        return AdapterLoader(self.store, MODEL, dtype, host=HostTier(host_bytes))

    def lose(self, digest: str) -> None:
        shutil.rmtree(self.store.path(digest))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_an_adapter_of_the_host_tier_is_loaded_without_its_files(files: Files) -> None:
    digest = files.add(4)
    loader = files.loader()
    first = loader.load(digest)
    files.lose(digest)
    assert loader.load(digest) is first
    with pytest.raises(AdapterMissing):
        files.loader().load(digest)


def test_the_host_tier_forgets_what_was_used_least_recently(files: Files) -> None:
    digests = [files.add(rank) for rank in (2, 3, 4)]
    sizes = [files.loader().load(digest).num_bytes for digest in digests]
    loader = files.loader(host_bytes=sizes[0] + sizes[2])
    for digest in (digests[0], digests[1], digests[0], digests[2]):
        loader.load(digest)
    for digest in digests:
        files.lose(digest)
    assert loader.load(digests[0]).num_bytes == sizes[0]
    assert loader.load(digests[2]).num_bytes == sizes[2]
    with pytest.raises(AdapterMissing):
        loader.load(digests[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_memory_is_that_of_the_true_rank(files: Files, dtype: torch.dtype) -> None:
    small, large = (files.loader(dtype).load(files.add(rank)) for rank in (4, 64))
    per_rank = 2 * (16 + 16 + 16 + 24) * dtype.itemsize
    assert (small.num_bytes, large.num_bytes) == (4 * per_rank, 64 * per_rank)
    assert small.weights.untyped_storage().nbytes() == small.num_bytes


def test_adapters_of_equal_ranks_share_their_layout(files: Files) -> None:
    loader = files.loader()
    one, same, other = (loader.load(files.add(rank, scale=scale)) for rank, scale in ((4, 1), (4, 2), (8, 1)))
    assert one.layout is same.layout is not other.layout


def test_each_matrix_begins_where_16_bytes_may_be_read_at_once() -> None:
    """This holds after a matrix of one output, too, such as that of the factor of a shared expert."""
    targets = {"gate": (16, 1), "q_proj": (16, 16)}
    ranks = {(layer, name): rank for layer in range(2) for name, rank in (("gate", 5), ("q_proj", 3))}
    layout = AdapterLayout(ranks, targets, [("gate",), ("q_proj",)])
    weights = torch.zeros(layout.num_elements, dtype=torch.bfloat16)
    matrices = [matrix for group in layout.groups_of(weights).values() for matrix in (group.a, *group.bs)]
    for matrix in matrices:
        assert (matrix.data_ptr() - weights.data_ptr()) % 16 == 0
        matrix += 1
    assert weights.max() == 1, "no two of them overlap"
    spans = [span for layer in range(2) for span in layout.spans_of(layer)]
    for first, last in spans:
        weights[first:last] = 0
    assert len(spans) == 4 and not weights.any()


def test_what_overflows_the_engines_numbers_is_refused_by_its_place(files: Files) -> None:
    digest = files.add(4, scale=1e6)
    with pytest.raises(AdapterRejected, match=r"layer 0 q_proj: a weight is .* too large for float16"):
        files.loader(torch.float16).load(digest)


def test_the_same_content_of_two_tenants_is_loaded_for_each(files: Files) -> None:
    digest = files.add(4)
    loader = files.loader()
    one, other, plain = (loader.load(key) for key in (content_key("a", digest), content_key("b", digest), digest))
    assert len({adapter.weights.data_ptr() for adapter in (one, other, plain)}) == 3
    assert loader.load(content_key("a", digest)) is one
    assert torch.equal(one.weights, other.weights)


def test_an_adapter_in_a_bucket_is_loaded_through_the_cache(files: Files, tmp_path: Path) -> None:
    bucket = MemoryStore()
    digest = files.add(4)
    there = RemoteStore(bucket, tmp_path / "gateway", 1 << 20)
    assert there.add(files.store.path(digest)) == digest
    here = RemoteStore(bucket, tmp_path / "engine", 1 << 20)
    loader = AdapterLoader(here, MODEL, torch.float32, host=HostTier(0))
    assert torch.equal(loader.load(digest).weights, files.loader().load(digest).weights)
    weights = here.path(digest) / "adapter_model.safetensors"
    raw = weights.read_bytes()
    weights.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(AdapterDamaged):
        loader.load(digest)
    loader.load(digest)  # from the bucket again
    there.remove(digest)
    here.path(digest)  # a cached adapter stays


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "adapter_config.json"])
def test_what_has_changed_in_the_store_is_not_loaded(files: Files, file: str) -> None:
    """A changed weight, or a changed scaling, makes a valid file, but another adapter's."""
    digest = files.add(4)
    path = files.store.path(digest) / file
    raw = path.read_bytes()
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]) if file.endswith("tensors") else raw.replace(b": 8", b": 9"))
    assert path.read_bytes() != raw
    with pytest.raises(AdapterDamaged, match=f"{digest} differs from the content that was stored"):
        files.loader().load(digest)


@pytest.mark.parametrize("key", ["", "..", "a" * 63, "a" * 64 + ".", "a" * 64 + ".b", "../" + "a" * 64])
def test_a_text_that_is_no_key_is_a_missing_adapter(files: Files, key: str) -> None:
    with pytest.raises(AdapterMissing):
        files.loader().load(key)


def test_an_adapter_larger_than_the_host_tier_passes_through_it() -> None:
    tier = HostTier(10)
    tier.put(LoadedAdapter("small", {}, 10))
    tier.put(LoadedAdapter("large", {}, 11))
    assert tier.get("small") is not None and tier.get("large") is None and tier.num_bytes == 10


def test_pinned_memory_is_counted_as_the_power_of_two_that_it_takes() -> None:
    tier = HostTier(32, pinned=True)
    for name, num_bytes in (("nine", 9), ("sixteen", 16), ("large", 33)):
        tier.put(LoadedAdapter(name, {}, num_bytes))
    assert tier.num_bytes == 32 and tier.get("nine") is not None and tier.get("large") is None
    tier.put(LoadedAdapter("one", {}, 1))
    assert tier.num_bytes == 16 + 1 and tier.get("sixteen") is None


def test_the_loading_thread_takes_no_thread_from_others() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with loading_executor() as executor, loading_executor() as another:
            assert executor.submit(torch.get_num_threads).result() == 1
            assert another.submit(torch.get_num_threads).result() == 1
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
