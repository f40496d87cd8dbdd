"""What an engine takes of a node in Ray's words, and why no node has it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.agent.launcher import Ask
from gateway.domain.pools.capacity import GPU_HOST_BYTES, gib

CPU, GPU, MEMORY = "CPU", "GPU", "memory"


class Node(msgspec.Struct, frozen=True):
    """A node of the cluster that lives."""

    id: str
    resources: Mapping[str, float]
    """All that it has, by Ray's names."""
    labels: Mapping[str, str] = {}


def nodes_of(told: Sequence[Mapping[str, Any]]) -> list[Node]:
    """Return the nodes that live. told: what `ray.nodes()` returns."""
    return [
        Node(each["NodeID"], each.get("Resources") or {}, each.get("Labels") or {}) for each in told if each["Alive"]
    ]


def needs_gpu(ask: Ask, nodes: Sequence[Node]) -> bool:
    """Tell whether an engine gets a GPU: where the settings leave that open, as soon as any node has one."""
    return ask.device == "cuda" or (ask.device == "auto" and any(node.resources.get(GPU) for node in nodes))


def demand(ask: Ask, *, on_gpu: bool) -> dict[str, float]:
    """Return what an engine takes, by Ray's names."""
    wanted: dict[str, float] = {CPU: float(ask.num_cpus)}
    num_bytes = GPU_HOST_BYTES if on_gpu else ask.memory_bytes
    if num_bytes:
        wanted[MEMORY] = float(num_bytes)
    return wanted | ({GPU: 1.0} if on_gpu else {})


def why_waiting(ask: Ask, nodes: Sequence[Node], *, on_gpu: bool) -> str:
    """Return a sentence that says why an engine has no node."""
    wanted = demand(ask, on_gpu=on_gpu)
    needs = f"it needs {_in_words(wanted)}"
    if not nodes:
        return f"waits for a node of the Ray cluster: none is there, and {needs}"
    labelled = [each for each in nodes if all(each.labels.get(name) == value for name, value in ask.labels.items())]
    if not labelled:
        asked = " ".join(f"{name}={value}" for name, value in ask.labels.items())
        return f"waits for a node of the Ray cluster with the label {asked}: none of {len(nodes)} has it"
    able = [each for each in labelled if all(each.resources.get(name, 0) >= least for name, least in wanted.items())]
    if not able:
        most = {name: max(each.resources.get(name, 0.0) for each in labelled) for name in wanted}
        return f"no node of the Ray cluster has room for it even when empty: {needs}, and the most is {_in_words(most)}"
    return f"waits for room on the nodes of the Ray cluster: {needs}, which {len(able)} of {len(nodes)} have when empty"


def _in_words(resources: Mapping[str, float]) -> str:
    names = {CPU: "CPU", GPU: "GPU"}
    parts = [
        f"{gib(int(amount))} of memory" if name == MEMORY else f"{amount:g} {names.get(name, name)}"
        for name, amount in resources.items()
    ]
    return " and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else parts[0]
