"""The resources that an engine asks of Ray, and the sentence about why it has no node."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.agent.launcher import LaunchRequest
from gateway.agent.ray.resources import RayNode, label_selector, needs_gpu, nodes_of, resource_demand, why_waiting
from gateway.domain.pools.capacity import Node

GIB = 1 << 30
ASK = LaunchRequest("replica_x", 1, "/models/x", "0" * 64, num_cpus=2, memory_bytes=3 * GIB)
SMALL = RayNode("a", {"CPU": 1.0, "memory": 8.0 * GIB})
LARGE = RayNode("b", {"CPU": 4.0, "memory": 16.0 * GIB}, {"zone": "west"})
WITH_GPU = RayNode("c", {"CPU": 4.0, "memory": 16.0 * GIB, "GPU": 2.0})


def request_with(**fields: Any) -> LaunchRequest:
    return LaunchRequest(**({name: getattr(ASK, name) for name in ASK.__struct_fields__} | fields))


def test_an_engine_takes_processors_and_memory_or_a_gpu() -> None:
    assert resource_demand(ASK, on_gpu=False) == {"CPU": 2.0, "memory": 3.0 * GIB}
    assert resource_demand(ASK, on_gpu=True) == {"CPU": 2.0, "memory": 3.0 * GIB, "GPU": 1.0}


@pytest.mark.parametrize(
    ("device", "nodes", "answer"),
    [
        ("auto", [SMALL, WITH_GPU], True),
        ("auto", [SMALL], False),
        ("cpu", [WITH_GPU], False),
        ("cuda", [SMALL], True),
    ],
)
def test_an_engine_takes_a_gpu_if_its_device_is_cuda_or_a_node_has_one(
    device: str, nodes: list[RayNode], answer: bool
) -> None:
    assert needs_gpu(request_with(device=device), nodes) is answer


@pytest.mark.parametrize(
    ("nodes", "labels", "on_gpu", "why"),
    [
        ([], {}, False, "none is there, and it needs 2 CPU and 3.0 GiB of memory"),
        ([SMALL], {}, False, "even when empty: it needs 2 CPU and 3.0 GiB of memory, and the most is 1 CPU and"),
        ([SMALL, LARGE], {}, False, "waits for room on the nodes of the Ray cluster: it needs 2 CPU and"),
        ([LARGE], {}, True, "3.0 GiB of memory and 1 GPU, and the most is 4 CPU, 16.0 GiB of memory and 0 GPU"),
        ([SMALL, LARGE], {"zone": "east"}, False, "with the label zone=east: none of 2 is one"),
        ([SMALL, LARGE], {"zone": "west"}, False, "which 1 of 2 have when empty"),
    ],
)  # fmt: skip
def test_a_replica_without_a_node_says_what_is_missing(
    nodes: list[RayNode], labels: dict[str, str], on_gpu: bool, why: str
) -> None:
    assert why in why_waiting(request_with(labels=labels), nodes, on_gpu=on_gpu)


def test_a_replica_without_a_node_names_the_labels_that_it_needs_and_excludes() -> None:
    ask = request_with(labels={"disk": "ssd"}, excluded={"zone": ["west", "east"]})
    assert label_selector(ask) == {"disk": "ssd", "zone": "!in(east,west)"}
    fit = msgspec.structs.replace(LARGE, labels={"disk": "ssd"})
    assert "which 1 of 2 have when empty" in why_waiting(ask, [LARGE, fit], on_gpu=False)
    unfit = msgspec.structs.replace(fit, labels={"disk": "ssd", "zone": "east"})
    why = why_waiting(ask, [LARGE, unfit], on_gpu=False)
    assert "with the label disk=ssd and without the label zone=west and without the label zone=east: none of 2" in why


def test_an_operator_sees_a_nodes_own_labels_alone() -> None:
    told = {"NodeID": "a", "Alive": True, "NodeManagerAddress": "10.0.0.7", "NodeManagerHostname": "rack-7"}
    told |= {"Resources": {"CPU": 4.0, "GPU": 1.0, "memory": 2.0**30}}
    [node] = nodes_of([told | {"Labels": {"ray.io/node-id": "a", "zone": "west"}}])
    assert node.shown() == Node("10.0.0.7", "rack-7", 4, 1 << 30, 1, {"zone": "west"})


def test_dead_nodes_are_left_out() -> None:
    told = [{"NodeID": "a", "Alive": False}, {"NodeID": "b", "Alive": True, "Resources": {"CPU": 1.0}, "Labels": None}]
    assert nodes_of(told) == [RayNode("b", {"CPU": 1.0})]
