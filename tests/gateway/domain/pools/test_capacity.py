"""The memory that a replica needs by its model and settings, the host where it fits, and the number of its threads."""

from __future__ import annotations

import msgspec
import pytest

from engine.config import EngineConfig, ModelConfig, RopeParameters
from engine.config.model import Quantized, Scheme
from gateway.domain.pools.capacity import (
    FreeMemory,
    Host,
    Needs,
    Node,
    Place,
    Weights,
    estimate,
    host_of_tcp,
    thread_share,
)
from tests.gateway.domain.pools.world import GIB, host

MODEL = ModelConfig("llama", 32000, 4096, 11008, 32, 32, 8, 128, 1e-5, RopeParameters(1e4), 4096, False)
CONFIG = EngineConfig(model_dir="", endpoint="", adapter_store="")
PARAMETERS = 8 * 10**9
WEIGHTS = Weights(PARAMETERS)


def test_on_processors_the_number_format_decides_about_the_weights() -> None:
    wide = estimate(WEIGHTS, MODEL, CONFIG, gpu_bytes=[], has_bf16=False)
    narrow = estimate(WEIGHTS, MODEL, CONFIG, gpu_bytes=[], has_bf16=True)
    assert (wide.weights, narrow.weights, wide.on_gpu) == (4 * PARAMETERS, 2 * PARAMETERS, False)
    assert wide.num_bytes == wide.weights + wide.kv_cache + wide.adapters + wide.process
    asked = msgspec.structs.replace(CONFIG, dtype="float32", kv_cache_bytes=GIB // 2, adapter_device_bytes=GIB)
    chosen = estimate(WEIGHTS, MODEL, asked, gpu_bytes=[], has_bf16=True)
    assert (chosen.weights, chosen.kv_cache, chosen.adapters) == (4 * PARAMETERS, GIB // 2, 2 * GIB)


@pytest.mark.parametrize(
    ("quantization", "changes", "num_bytes"),
    [
        ("auto", {}, 3200 * 20 // 32 + 3200 * 34 // 32),
        ("gguf", {"dtype": "float16"}, 3200 * 20 // 32 + 3200 * 34 // 32),
        ("auto", {"dtype": "float16"}, 6400 * 2),
        ("none", {}, 6400 * 4),
        ("int8", {}, 6400 * 34 // 32),
        ("int4", {}, 640 * 34 // 32 + 5760 * 20 // 32),
    ],
)
def test_on_processors_quantized_weights_count_as_they_are_held(
    quantization: str, changes: dict[str, str], num_bytes: int
) -> None:
    weights = Weights(6400, 640, {"Q4_0": 3200, "Q5_0": 3200})
    config = msgspec.structs.replace(CONFIG, quantization=quantization, **changes)
    assert estimate(weights, MODEL, config, gpu_bytes=[], has_bf16=False).weights == num_bytes
    on_gpu = estimate(weights, MODEL, config, gpu_bytes=[80 * GIB], has_bf16=False)
    assert on_gpu.on_gpu and on_gpu.weights == 6400 * 2


@pytest.mark.parametrize(
    ("scheme", "asked", "of_layers"),
    [
        (Scheme("float8", 8, 128, 128, rounds_inputs=True), "auto", 1),
        (Scheme("float8", 8, 128, 128), "auto", 1),
        (Scheme("int", 8, 1, 128), "auto", 2),
        (Scheme("int", 4, 1, 128), "auto", 19 / 32),
        (Scheme("int", 4, 1, 128), "none", 2),
    ],
)
def test_on_an_accelerator_a_checkpoint_in_few_bits_counts_as_it_is_held(
    scheme: Scheme, asked: str, of_layers: float
) -> None:
    """The memory follows from the model's sizes, since the files hold several numbers in one."""
    model = msgspec.structs.replace(MODEL, quantized=Quantized("compressed-tensors", (scheme,)))
    config = msgspec.structs.replace(CONFIG, quantization=asked)
    layers, heads = 32 * sum(a * b for a, b in MODEL.projection_shapes().values()), 2 * 32000 * 4096
    found = estimate(Weights(1), model, config, gpu_bytes=[80 * GIB], has_bf16=True)
    assert found.on_gpu and found.weights == heads * 2 + layers * of_layers


def test_the_estimate_assumes_that_safetensors_are_not_quantized_automatically() -> None:
    assert CONFIG.quantization == "auto"
    assert estimate(Weights(6400, 640), MODEL, CONFIG, gpu_bytes=[], has_bf16=False).weights == 6400 * 4


def test_an_open_kv_cache_takes_the_fraction_of_the_smallest_accelerator_that_is_large_enough() -> None:
    gpus = [80 * GIB, 24 * GIB, 8 * GIB]
    found = estimate(WEIGHTS, MODEL, CONFIG, gpu_bytes=gpus, has_bf16=False)
    assert found.on_gpu and found.num_bytes == int(24 * GIB * CONFIG.gpu_memory_fraction)
    sized = msgspec.structs.replace(CONFIG, kv_cache_bytes=2 * GIB, adapter_device_bytes=GIB)
    small = estimate(WEIGHTS, MODEL, sized, gpu_bytes=gpus, has_bf16=False)
    assert small.num_bytes == 2 * PARAMETERS + 4 * GIB
    on_cpu = msgspec.structs.replace(CONFIG, device="cpu")
    assert not estimate(WEIGHTS, MODEL, on_cpu, gpu_bytes=gpus, has_bf16=False).on_gpu


def test_an_estimate_says_what_it_is_made_of() -> None:
    found = estimate(Weights(GIB // 4), MODEL, CONFIG, gpu_bytes=[], has_bf16=False)
    assert str(found) == "4.5 GiB (weights 1.0 GiB, KV cache 1.0 GiB, adapters 2.0 GiB, the process itself 0.5 GiB)"


def test_room_is_taken_and_given_back() -> None:
    room = FreeMemory([host(5)])
    place = room.take(Needs(3 * GIB))
    assert place == Place("host_one") and room.take(Needs(3 * GIB)) is None
    room.leave(place, Needs(3 * GIB))
    assert room.find(Needs(5 * GIB)) == place
    assert room.copy().take(Needs(5 * GIB)) == place and room.find(Needs(5 * GIB)) == place, "a copy is apart"


def test_an_accelerator_holds_several_small_engines_and_its_host_some_memory_for_each() -> None:
    room = FreeMemory([host(7, gpus=1)])
    assert [room.take(Needs(20 * GIB)) for _ in range(3)] == [Place("host_one", 0), Place("host_one", 0), None]
    assert room.find(Needs(GIB, "cpu")) == Place("host_one")


def test_a_refusal_says_the_sum_of_each_host() -> None:
    room = FreeMemory([host(5), host(64, gpus=1, name="two"), host(64, name="gone", is_alive=False)])
    room.occupy(Place("host_two", 0), Needs(70 * GIB))
    assert room.refusal(Needs(20 * GIB)) == (
        "A replica needs 20.0 GiB of memory; one has 5.0 GiB in all; "
        "on two GPU 0 has 80.0 GiB, of which 10.0 GiB are free."
    )
    room.occupy(Place("host_one"), Needs(GIB))
    assert "one has 5.0 GiB, of which 4.0 GiB are free" in room.refusal(Needs(20 * GIB))


def test_a_refusal_names_the_hosts_own_memory_where_that_is_what_is_missing() -> None:
    room = FreeMemory([host(4, gpus=1)])
    room.occupy(Place("host_one", 0), Needs(GIB))
    assert room.refusal(Needs(20 * GIB)) == (
        "A replica needs 20.0 GiB of memory; on one GPU 0 has 80.0 GiB, of which 79.0 GiB are free, "
        "and the host has 4.0 GiB, of which 1.0 GiB are free, where a replica takes 3.0 GiB."
    )


@pytest.mark.parametrize(
    ("asked", "num_processors", "num_engines", "share"),
    [(0, 2, 1, 0), (0, 2, 2, 1), (0, 8, 3, 2), (0, 2, 5, 1), (4, 8, 3, 4)],
)
def test_engines_share_the_processors_of_a_host(asked: int, num_processors: int, num_engines: int, share: int) -> None:
    assert thread_share(asked, num_processors, num_engines) == share


@pytest.mark.parametrize(
    ("address", "where"),
    [("tcp://10.0.0.7:7400", "10.0.0.7"), ("tcp://[fd00::7]:7400", "fd00::7"), ("ipc:///run/a.sock", ""), ("", "")],
)
def test_only_a_tcp_address_names_a_host(address: str, where: str) -> None:
    assert host_of_tcp(address) == where


def test_a_replica_goes_from_a_node_that_the_pool_does_not_ask_for() -> None:
    nodes = [Node("10.0.0.7", "seven", 4, GIB, 0, {"zone": "west"}), Node("10.0.0.8", "eight", 4, GIB, 0)]
    cluster = Host("host_c", "cluster", True, 0, is_cluster=True, nodes=nodes)
    west, not_west = Needs(0, labels={"zone": "west"}), Needs(0, excluded={"zone": ["west"]})
    seven, eight, unknown = (f"tcp://10.0.0.{number}:7400" for number in (7, 8, 9))
    assert [cluster.is_left_by(each, west) for each in (seven, eight, unknown, "")] == [False, True, False, False]
    assert [cluster.is_left_by(each, not_west) for each in (seven, eight, unknown)] == [True, False, False]
