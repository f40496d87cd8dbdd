"""The resources that an engine takes of a node, in Ray's words, and the reason why no node has them. Calls no Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.agent.launcher import LaunchRequest
from gateway.domain.pools.capacity import GPU_HOST_BYTES, Node, gib_text

CPU, GPU, MEMORY = "CPU", "GPU", "memory"
_RAYS_OWN = "ray.io/"
"""The beginning of the names of labels that Ray itself gives to each node."""


class RayNode(msgspec.Struct, frozen=True):
    """A node of the cluster that lives."""

    id: str
    resources: Mapping[str, float]
    """All resources of the node, by Ray's names."""
    labels: Mapping[str, str] = {}
    address: str = ""
    name: str = ""

    def shown(self) -> Node:
        """Return the node as operators see it, with the labels that they gave it."""
        return Node(
            address=self.address,
            name=self.name,
            num_processors=int(self.resources.get(CPU, 0)),
            memory_bytes=int(self.resources.get(MEMORY, 0)),
            num_gpus=int(self.resources.get(GPU, 0)),
            labels={name: value for name, value in self.labels.items() if not name.startswith(_RAYS_OWN)},
        )


def nodes_of(told: Sequence[Mapping[str, Any]]) -> list[RayNode]:
    """Return the nodes that are alive. told: the result of `ray.nodes()`."""
    return [
        RayNode(
            each["NodeID"],
            each.get("Resources") or {},
            each.get("Labels") or {},
            each.get("NodeManagerAddress") or "",
            each.get("NodeManagerHostname") or "",
        )
        for each in told
        if each["Alive"]
    ]


def needs_gpu(ask: LaunchRequest, nodes: Sequence[RayNode]) -> bool:
    """Tell whether an engine gets a GPU: as the settings say, else if any node has GPUs."""
    return ask.device == "cuda" or (ask.device == "auto" and any(node.resources.get(GPU) for node in nodes))


def resource_demand(ask: LaunchRequest, *, on_gpu: bool) -> dict[str, float]:
    """Return the resources that an engine takes, by Ray's names.

    on_gpu: True if the engine computes on a GPU.
    """
    wanted: dict[str, float] = {CPU: float(ask.num_cpus)}
    num_bytes = GPU_HOST_BYTES if on_gpu else ask.memory_bytes
    if num_bytes:
        wanted[MEMORY] = float(num_bytes)
    return wanted | ({GPU: 1.0} if on_gpu else {})


def label_selector(ask: LaunchRequest) -> dict[str, str]:
    """Return an engine's demands on a node's labels in Ray's form: one condition for each label.

    A label that must have one value has no excluded values: no pool may want both. Excluded values with a slash are
    left out, since Ray refuses such values, so that no node has one.
    """
    able = {name: sorted(each for each in values if "/" not in each) for name, values in ask.excluded.items()}
    return {name: f"!in({','.join(values)})" for name, values in able.items() if values} | dict(ask.labels)


def _is_fit(ask: LaunchRequest, node: RayNode) -> bool:
    has_all = all(node.labels.get(name) == value for name, value in ask.labels.items())
    return has_all and not any(node.labels.get(name) in values for name, values in ask.excluded.items())


def nodes_for(ask: LaunchRequest, nodes: Sequence[RayNode], *, on_gpu: bool) -> list[RayNode]:
    """Return the nodes that have what an engine needs while nothing else runs there.

    on_gpu: True if the engine computes on a GPU.
    """
    wanted = resource_demand(ask, on_gpu=on_gpu)
    fit = [each for each in nodes if _is_fit(ask, each)]
    return [each for each in fit if all(each.resources.get(name, 0) >= least for name, least in wanted.items())]


def why_waiting(ask: LaunchRequest, nodes: Sequence[RayNode], *, on_gpu: bool) -> str:
    """Return a sentence that says why an engine has no node.

    on_gpu: True if the engine computes on a GPU.
    """
    wanted = resource_demand(ask, on_gpu=on_gpu)
    needs = f"it needs {_resource_text(wanted)}"
    if not nodes:
        return f"waits for a node of the Ray cluster: none is there, and {needs}"
    labelled = [each for each in nodes if _is_fit(ask, each)]
    if not labelled:
        asked = [f"with the label {name}={value}" for name, value in ask.labels.items()]
        asked += [f"without the label {name}={value}" for name, values in ask.excluded.items() for value in values]
        return f"waits for a node of the Ray cluster {' and '.join(asked)}: none of {len(nodes)} is one"
    able = nodes_for(ask, nodes, on_gpu=on_gpu)
    if not able:
        most = {name: max(each.resources.get(name, 0.0) for each in labelled) for name in wanted}
        at_most = _resource_text(most)
        return f"no node of the Ray cluster has room for it even when empty: {needs}, and the most is {at_most}"
    return f"waits for room on the nodes of the Ray cluster: {needs}, which {len(able)} of {len(nodes)} have when empty"


def _resource_text(resources: Mapping[str, float]) -> str:
    names = {CPU: "CPU", GPU: "GPU"}
    parts = [
        f"{gib_text(int(amount))} of memory" if name == MEMORY else f"{amount:g} {names.get(name, name)}"
        for name, amount in resources.items()
    ]
    return " and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else parts[0]
